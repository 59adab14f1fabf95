import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.explanation import Explanation, LogExplanation, Role, Sighting
from gpudiag.reference.failures import failures
from gpudiag.reference.sxid import sxids
from gpudiag.reference.xid import xids
from gpudiag.render.explain_text import render_explanation, render_log_explanation
from gpudiag.render.style import COLUMNS
from gpudiag.runs.read_log import explain_log
from gpudiag.runs.topics import explain_failure, explain_sxid, explain_xid, known_topics

LABEL_COLUMNS = len("  Look also: ")
EVERY_TOPIC = (
    *known_topics().values(),
    *(explain_xid(code) for code in (*xids(), 12)),
    *(explain_sxid(code) for code in (*sxids(), 1)),
    *(explain_failure(failure) for failure in failures().values()),
)


@pytest.mark.parametrize("explanation", EVERY_TOPIC, ids=lambda explanation: explanation.topic)
def test_every_topic_fits_a_terminal_and_says_what_to_do(explanation):
    text = render_explanation(explanation)
    assert text.startswith(explanation.topic)
    # A path or an address is not broken, so a line with a word that is longer than its column may be too.
    long = [line for line in text.splitlines() if len(line) > COLUMNS]
    assert [line for line in long if max(map(len, line.split())) <= COLUMNS - LABEL_COLUMNS] == []
    assert explanation.remedy or explanation.look_also


def test_a_symptom_beside_a_cause_needs_no_advice():
    log = b"NVRM: Xid (PCI:0000:5d:00): 79, GPU\nWatchdog caught collective operation timeout: x\n"
    text = render_log_explanation(explain_log("job.log", io.BytesIO(log)))
    both = text.splitlines()
    assert sum(line.startswith("  Do:") for line in both) == 1
    alone = render_log_explanation(explain_log("job.log", io.BytesIO(log.splitlines()[1])))
    assert "  Do:" in alone


@given(excerpt=st.text(max_size=5000), name=st.text(max_size=200))
def test_hostile_texts_stay_on_their_lines(excerpt, name):
    explanation = Explanation("cuda.out_of_memory", "a GPU ran out of memory", "Cause.", remedy="Mend.")
    sighting = Sighting(explanation, Role.CAUSE, (1,), 1, excerpt)
    text = render_log_explanation(LogExplanation(name, 1, 0, (sighting,)))
    assert all(character.isprintable() for line in text.split("\n") for character in line)
    assert len(text.split("\n")) < 20
