"""Lines sorted by a few letters of their words show what the patterns themselves find in them."""

from gpudiag.explain.shapes import ERROR_MARK, RAISED_MARK, Classifier, shape_of
from gpudiag.explain.talk import MARKS
from gpudiag.reference.failures import failures
from tests.corpus.explained import texts
from tests.corpus.jobs_explained import job_cases, recorded_cases

# One line for each alternative of the marks of launchers and watchdogs.
TALK = (
    "  time      : 2026", "  host      : a", "  rank      : 3 (local_rank: 1)", "  exitcode  : 1 (pid: 7)", "  exitcode : 1", "  error_file: <N/A>",
    "  traceback : Signal 9", "Root Cause (first observed failure):", "failed (exitcode: 1)", "Sending process 7 closing signal SIGTERM",
    "srun: error: n1: task 3: Killed", "wait timeout after 9ms, keys: /default_pg/0", "3/4 clients joined", "Rank 1 failed to pass monitoredBarrier",
    "WorkNCCL(SeqNum=1", "last enqueued NCCL work: 7", "Timed out waiting 9 ms", "CollectiveFingerPrint(", "op.preamble.length", "node_rank=1", "node-rank 1",
    "Init COMPLETE", "Init START", "Bootstrap : Using eth0", "Bootstrap: Using eth0", "OOB eth0:1.2.3.4", "Got completion from peer", "retrieving ncclUniqueId from",
    "global_ranks=[0]", "Killed process 7 (python)", "python[7]: segfault at 0", "Name: train-0", "Node: n1/1.2.3.4", "   Exit Code:    137", "Linux n1 6.1 #1 SMP",
    "Rendezvous'ed worker", "Rendezvoused worker group", "rank 3 did not join", "peer has left", "restart_count=1", "Worker group default", "exited on signal 9",
    "Stack trace of the failed collective", "COMMON_TIMEOUT", "heartbeat", "exits with return code = 1", "Killing subprocess 7", "Assigned values",
)  # fmt: skip


def test_each_mark_of_launchers_is_seen() -> None:
    classifier = Classifier()
    for line in TALK:
        assert MARKS.search(line.encode()), line
        assert classifier.classify(shape_of(line.encode())).is_talk, line


def test_what_a_line_may_show_is_what_the_patterns_find() -> None:
    found = {line for text in texts() for line in text.text.splitlines()}
    found |= {
        line
        for case in (*job_cases(), *recorded_cases())
        for _, text in case.logs
        for line in text.splitlines()
    }
    shapes = {shape_of(line.encode(errors="surrogateescape")) for line in found}
    assert len(shapes) > 1000
    stems = [
        (shape_of(one.part.encode()), failure.id)
        for failure in failures().values()
        for one in failure.patterns
    ]
    classifier = Classifier()
    for shape in shapes:
        kind = classifier.classify(shape)
        assert sorted(failure.id for failure, _ in kind.candidates) == sorted(
            name for stem, name in stems if stem in shape
        ), shape
        assert kind.is_raised == (RAISED_MARK.search(shape) is not None), shape
        assert kind.is_error == (ERROR_MARK.search(shape) is not None), shape
        assert kind.is_talk == (MARKS.search(shape) is not None), shape
