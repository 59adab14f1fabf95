"""What `gpudiag run` said is read by `gpudiag explain`: its lines in a job's log, and its verdict."""

import json
from io import BytesIO

import pytest

from gpudiag.explain.answer import explain_logs, open_log
from gpudiag.model.explanation import LogExplanation, VerdictKind

STALL = """\
step 40 loss 2.31
gpudiag: \x1b[31mSTALL\x1b[0m the job stood still for 42.7 s, 38 of its steps: rank 1 is not in
gpudiag:   the all_reduce (train.py:106 in main) that rank 0 waits in, 43 s so
gpudiag:   far: it sleeps at train.py:101 in main
gpudiag:   do: Look at its line: what it waits for may never come. Give the loop
gpudiag:     of sleeps a limit.
gpudiag:   the job continues; verdict so far: v.json
"""
LOST = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/job/train.py", line 106, in main
[rank0]:     dist.all_reduce(batch)
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:27535
"""
LEFT = """\
gpudiag: FAIL rank 1 left: it ended with exit status 0 after 59 s, while rank 0
gpudiag:   waited in all_reduce (train.py:106 in main) for 54 s
gpudiag:   do: Let every rank make the same number of calls. [job.rank_left]
gpudiag: WARN rank 3 is slow: it waits for others 8% of the time, they wait 92%
gpudiag:   verdict: v.json
"""
RAISED = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 63, in load
[rank1]:     LABELS["dog"]
[rank1]: KeyError: 'dog'
gpudiag: FAIL rank 1 failed first: it ended with exit code 1 after 7.4 s:
gpudiag:   KeyError: 'dog' at train.py:63 in load
gpudiag:   do: Read what that rank printed last. [job.rank_failed]
"""
INTERRUPTED = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nKeyboardInterrupt\n'


def explained(text: str, name: str = "job.log") -> LogExplanation:
    return explain_logs([open_log(name, BytesIO(text.encode()))])


def test_a_stall_in_a_log_is_the_answer() -> None:
    verdict = explained(STALL).verdict
    assert verdict is not None
    assert verdict.kind is VerdictKind.RANK_MISSING
    assert (verdict.ranks, verdict.line) == ((1,), 2)
    assert verdict.sentence == (
        "The job stood still for 42.7 s, 38 of its steps: "
        "rank 1 is not in the all_reduce (train.py:106 in main) that rank 0 "
        "waits in, 43 s so far: it sleeps at train.py:101 in main."
    )
    assert verdict.remedy.endswith("Give the loop of sleeps a limit.")
    # Also with what a launcher puts before each line, and where the user then ended the job.
    with_ranks = "".join(f"2026-11-27T10:00:00 node7: {line}\n" for line in STALL.splitlines())
    ended = explained(with_ranks + INTERRUPTED).verdict
    assert ended is not None
    assert (ended.sentence, ended.ranks) == (verdict.sentence, (1,))


def test_the_words_at_the_end_stand_above_those_before_and_above_echoes() -> None:
    told = explained(STALL + LOST + LEFT)
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks) == (VerdictKind.RANK_MISSING, (1,))
    assert told.verdict.sentence.startswith("Rank 1 left: it ended with exit status 0")
    assert "[job." not in told.verdict.sentence + told.verdict.remedy
    alone = explained(LOST).verdict
    assert alone is not None
    assert alone.kind is VerdictKind.ONLY_ECHOES


def test_a_cause_that_the_log_names_itself_keeps_its_line_and_has_the_words_beside_it() -> None:
    verdict = explained(RAISED).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.ranks, verdict.excerpt) == (
        VerdictKind.RANK_FAILED,
        (1,),
        "KeyError: 'dog'",
    )
    assert any("rank 1 failed first: it ended with exit code 1" in said for said in verdict.evidence)


def test_own_lines_are_no_errors_of_the_job() -> None:
    """They quote what others said: without them nothing is wrong here."""
    words = (
        "gpudiag: WARN the job was ended from outside: SIGINT\ngpudiag:   RuntimeError: CUDA out of memory\n"
    )
    told = explained(words)
    assert told.sightings == ()
    assert told.unknown == ()
    assert told.verdict is not None
    assert told.verdict.kind is VerdictKind.STOPPED


@pytest.mark.parametrize("version", [1, 2])
def test_a_verdict_is_read_as_what_it_is(version: int) -> None:
    finding = {
        "code": "job.stalled",
        "outcome": "fail",
        "message": "the job stood still for 20 s: rank 2 is stopped",
        "remedy": "kill -CONT 7",
    }
    document = {
        "schema": f"gpudiag.job_run/{version}",
        "outcome": "fail",
        "headline": "x",
        "findings": [finding],
    }
    verdict = explained(json.dumps(document), "v.json").verdict
    assert verdict is not None
    assert (verdict.kind, verdict.ranks, verdict.remedy) == (VerdictKind.RANK_MISSING, (2,), "kill -CONT 7")
    well = explained(
        json.dumps({**document, "outcome": "pass", "headline": "it ended well", "findings": []}), "v.json"
    )
    assert well.verdict is not None
    assert well.verdict.kind is VerdictKind.NOTHING
    damaged = explained(json.dumps(document)[:60], "v.json")
    assert "damaged" in str(damaged.logs[0].refused)
