import re

import click
import pytest

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.cli.commands import COMMANDS, gpudiag
from gpudiag.explain.recipe import explain_text, explain_topic
from gpudiag.explain.topics import known_topics
from gpudiag.reference.failures import ANY_CAUSE, failure_tables, failures, longest_part
from gpudiag.reference.tables import read_table
from tests.corpus.explained import answer_to, texts
from tests.unit.reference.failure_texts import HARMLESS, OTHERS, TWENTY
from tests.walking import walk

# Commands that texts may name before they are there.
COMING = ("preflight", "history")


def recognised(text):
    return {sighting.explanation.topic for sighting in explain_text(text).sightings}


@pytest.mark.parametrize(("number", "expected", "text"), TWENTY)
def test_the_twenty_failures_are_recognised(number, expected, text):
    assert expected in recognised(text)


def test_the_twenty_are_twenty():
    assert {number for number, _, _ in TWENTY} == set(range(1, 21))


@pytest.mark.parametrize(("expected", "text"), OTHERS)
def test_errors_of_cuda_nccl_and_the_kernel_are_recognised(expected, text):
    assert expected in recognised(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_failure_is_not_recognised(text):
    assert recognised(text) == set()


def test_every_failure_has_a_text_that_shows_it():
    shown = {expected for _, expected, _ in TWENTY} | {expected for expected, _ in OTHERS}
    shown |= {text.expected.removeprefix("symptom:") for text in texts()}
    told = {
        topic for text in texts() for topic in (*answer_to(text.text).causes, *answer_to(text.text).symptoms)
    }
    assert set(failures()) - shown - told == set()


@walk(failures(), str)
def test_every_failure_has_a_near_miss_that_is_not_taken_for_it(topic):
    near = next(text for text in texts() if text.name == f"near {topic}")
    answer = answer_to(near.text)
    assert topic not in (*answer.causes, *answer.symptoms)


def test_no_id_stands_twice():
    assert sum(len(read_table(table)["failure"]) for table in failure_tables()) == len(failures())


@walk(failures().values(), lambda failure: failure.id)
def test_a_pattern_is_looked_up_by_a_part_that_every_match_holds(failure):
    for pattern in failure.patterns:
        assert len(re.sub(r"0x[0-9a-f]*|\d", "", pattern.part)) >= 4, pattern.expression
        assert not re.search(
            r"(?<!\\)\|", re.sub(r"\((?:[^()\\]|\\.|\([^()]*\))*\)|\[[^\]]*\]", "", pattern.expression)
        )
        re.compile(pattern.expression)


def test_known_parts_are_found_in_expressions():
    assert longest_part(r"exitcode *: -9\b") == "exitcode"
    assert longest_part(r"colou?rs? of (?:red|blue) \[x\]") == "rs"[:0] or " of "
    assert longest_part(r"a(?:b|c\))d[]e]fgh") == "fgh"


@walk(failures().values(), lambda failure: failure.id)
def test_an_entry_is_whole(failure):
    assert failure.cause.endswith(".")
    assert failure.remedy
    assert failure.source
    assert failure.program
    # A failure follows other failures of the list, or an Xid.
    assert all(
        other in failures() or other == ANY_CAUSE or other.startswith("Xid ") for other in failure.follows
    )


@walk(finding_kinds(), lambda kind: kind.code)
def test_every_code_is_explained_whole(kind):
    explanation = known_topics()[kind.code]
    assert explanation.meaning
    assert explanation.reads
    assert explanation.limit
    assert explanation.remedy
    assert explanation.look_also


def test_every_topic_to_look_at_can_be_explained():
    topics = {topic for kind in finding_kinds() for topic in kind.basis.look_also if is_topic(topic)}
    assert {topic for topic in topics if explain_topic(topic) is None} == set()
    assert topics


def is_topic(text):
    return re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", text) is not None


def commands_in_the_texts():
    texts = [
        *(failure.proof for failure in failures().values()),
        *(text for kind in finding_kinds() for text in kind.basis.look_also),
        *(kind.remedy for kind in finding_kinds()),
    ]
    return sorted(
        {
            match[0]
            for text in texts
            for match in re.finditer(r"gpudiag (?!list --free)[a-z][a-z -]*[a-z]", text)
        }
    )


@pytest.mark.parametrize("command", commands_in_the_texts())
def test_every_command_that_a_text_names_exists(command):
    name, *flags = command.removeprefix("gpudiag ").split()
    if name not in COMMANDS and name in COMING:
        pytest.skip(f"`gpudiag {name}` has not landed")
    tree = gpudiag.get_command(click.Context(gpudiag), name)
    assert tree is not None, command
    known = {option for parameter in tree.params for option in parameter.opts}
    assert {flag for flag in flags if flag.startswith("--")} <= known | {"--help"}
