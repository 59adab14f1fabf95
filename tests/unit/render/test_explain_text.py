from hypothesis import given
from hypothesis import strategies as st

from gpudiag.explain.recipe import explain_text
from gpudiag.explain.topics import explain_failure, explain_sxid, explain_xid, known_topics
from gpudiag.model.explanation import Explanation, LogExplanation, LogRead, Role, Sighting, UnknownError
from gpudiag.reference.failures import failures
from gpudiag.reference.xid import sxids, xids
from gpudiag.render.explain_text import render_explanation, render_log_explanation
from gpudiag.render.style import columns
from tests.walking import walk

LABEL_COLUMNS = len("  Look also: ")
EVERY_TOPIC = (
    *known_topics().values(),
    *(explain_xid(code) for code in (*xids(), 12)),
    *(explain_sxid(code) for code in (*sxids(), 1)),
    *(explain_failure(failure) for failure in failures().values()),
)


@walk(EVERY_TOPIC, lambda explanation: explanation.topic)
def test_every_topic_fits_a_terminal_and_says_what_to_do(explanation):
    text = render_explanation(explanation)
    assert text.startswith(explanation.topic)
    # A path or an address is not broken, so a line with a word that is longer than its column may be too.
    long = [line for line in text.splitlines() if len(line) > columns()]
    assert [line for line in long if max(map(len, line.split())) <= columns() - LABEL_COLUMNS] == []
    assert explanation.remedy or explanation.look_also


def test_a_symptom_beside_a_cause_needs_no_advice():
    log = "NVRM: Xid (PCI:0000:5d:00): 79, GPU\nWatchdog caught collective operation timeout: x\n"
    both = render_log_explanation(explain_text(log)).splitlines()
    assert sum(line.startswith("  Do:") for line in both) == 1
    alone = render_log_explanation(explain_text(log.splitlines()[1]))
    assert "  Do:" in alone


@given(excerpt=st.text(max_size=5000), name=st.text(max_size=200), words=st.text(max_size=2000))
def test_hostile_texts_stay_on_their_lines(excerpt, name, words):
    explanation = Explanation("cuda.out_of_memory", "a GPU ran out of memory", "Cause.", remedy="Mend.")
    sighting = Sighting(explanation, Role.CAUSE, (1,), 1, excerpt, log=name, where=words)
    error = UnknownError(words, name, 1, 1, words, words)
    refused = LogRead(name, 0, refused="it is a binary file, not a log")
    text = render_log_explanation(LogExplanation((LogRead(name, 1), refused), (sighting,), (error,)))
    assert all(character.isprintable() for line in text.split("\n") for character in line)
    assert len(text.split("\n")) < 50


def test_what_was_not_read_is_said():
    refused = LogRead("core.1", 0, refused="it is a program or a core dump, not a log")
    text = render_log_explanation(LogExplanation((refused,), (), ()))
    assert " ".join(text.split()) == "core.1: not read: it is a program or a core dump, not a log."


def test_an_unknown_error_is_told_with_the_own_line_and_never_as_no_failure():
    error = UnknownError("ValueError: no", "job.log", 7, 8, "train.py:42 in main: check(x)", "3")
    text = " ".join(render_log_explanation(LogExplanation((LogRead("job.log", 9),), (), (error,))).split())
    assert "an error that gpudiag does not know" in text
    assert "UNKNOWN (line 7, 8 times, printed by 3)" in text
    assert "Your line: train.py:42 in main: check(x)" in text
