"""Why something could not be looked at, in people's words: no name of a field, no value of an enumeration."""

import re
from collections.abc import Iterator
from dataclasses import fields

from gpudiag.checks import BUILTIN
from gpudiag.checks.runner import findings_worst_first, run_checks
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot, SourceState
from gpudiag.model.finding import CheckResult, Outcome
from gpudiag.model.host import Machine
from gpudiag.model.host_state import HostState
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.report import Measures, Report
from gpudiag.reference.reading_names import WHY_MISSING, describe_missing, name_reading, name_state
from gpudiag.reference.readings import READINGS
from gpudiag.render.reason import render_reason
from gpudiag.render.report_text import render_report_text
from gpudiag.render.report_words import describe_fact
from gpudiag.render.sources_text import render_sources
from gpudiag.render.style import Style
from gpudiag.render.wide_text import render_wide
from gpudiag.runs.gate import judge_results
from tests.scenarios.situations import Case, blank, look_at_machine
from tests.scenarios.test_catalogue import CASES
from tests.walking import walk

VERBOSE = Style(verbose=True)
FIELDS = {
    one.name
    for noun in (Device, Machine, HostState, Snapshot, Measures)
    for one in fields(noun)
    if "_" in one.name
}
_RAW = {value for kind in (MissingReason, SourceState) for one in kind if "_" in (value := one.value)}
# Values of which every word is replaced, and which no sentence of ours has.
_BARE = {
    "source absent",
    "function not found",
    "device lost",
    "reset required",
    "library absent",
}


def raw_words(text: str) -> set[str]:
    """Names of fields, and values of enumerations, in a text for people."""
    words = set(re.findall(r"(?<![.\w])[a-z]+(?:_[a-z0-9]+)+", text))
    return (words & (FIELDS | _RAW)) | {phrase for phrase in _BARE if phrase in text}


def texts(results: tuple[CheckResult, ...], snapshot: Snapshot) -> Iterator[str]:
    report = Report(judge_results(results), results, snapshot)
    yield from (result.reason for result in results if result.reason)
    yield from (finding.message for result in results for finding in result.findings)
    for style in (VERBOSE, Style()):
        yield render_report_text(report, style)
        yield render_wide(snapshot, findings_worst_first(results), (), style)
        yield render_sources(snapshot, style)
    yield render_reason(report)


@walk((spec, reason) for spec in ("h100x8", "t4x1", "none") for reason in MissingReason)
def test_what_is_not_there_is_told_in_words(case: tuple[str, MissingReason]) -> None:
    spec, reason = case
    snapshot = blank(look_at_machine(spec), lambda: reason)
    gone = Missing(reason)
    context = Context(
        snapshot, Measures(gone, gone, gone), earlier=gone, baseline=gone, known_gpus=gone, history=gone
    )
    results = run_checks(context, BUILTIN)
    assert any(result.outcome in (Outcome.SKIP, Outcome.ERROR) for result in results)
    assert {word for text in texts(results, snapshot) for word in raw_words(text)} == set()


@walk(CASES, lambda case: f"{case.check}:{case.code}")
def test_what_was_found_is_told_in_words(case: Case) -> None:
    check = next(check for check in BUILTIN if check.name == case.check)
    (found,) = run_checks(case.fires.context(look_at_machine(case.base)), (check,))
    told = [finding.message for finding in found.findings]
    told += [describe_fact(fact) for finding in found.findings for fact in finding.evidence]
    told.append(found.reason or "")
    assert {word for text in told for word in raw_words(text)} == set(), told


@walk(MissingReason)
def test_every_reason_has_words(reason: MissingReason) -> None:
    assert raw_words(describe_missing(Missing(reason))) == set()
    assert describe_missing(Missing(reason, "error 999")) == f"{WHY_MISSING[reason]} (error 999)"


@walk(sorted({declared.name for declared in READINGS} | {one.name for one in fields(Device)}))
def test_every_reading_has_a_name_without_its_unit(field: str) -> None:
    name = name_reading(field)
    assert "_" not in name
    assert not re.search(r"\b(bytes|celsius|watts|mhz|percent)$", name), name


def test_every_state_of_a_source_has_words_of_its_own() -> None:
    named = [name_state(state) for state in SourceState]
    assert len(set(named)) == len(named)
    assert not any("_" in name for name in named)


def test_a_raw_word_is_found() -> None:
    assert raw_words("GPU 0: retired_pages_corrected: not_supported; RDMA ports: source absent") == {
        "retired_pages_corrected",
        "not_supported",
        "source absent",
    }
