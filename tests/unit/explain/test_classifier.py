"""Lines sorted by a few letters of their words show what the patterns themselves find in them."""

import os
import re
import subprocess
import sys

from gpudiag.explain.classifier import DOUBT_MARK, ERROR_MARK, RAISED_MARK, Classifier, shape_of
from gpudiag.explain.launcher_lines import LAUNCHER_LINES, LAUNCHER_MARK
from gpudiag.reference.failures import failures
from tests.corpus.explained import texts
from tests.corpus.jobs_explained import job_cases, recorded_cases

_EXPLAIN = """
import sys
from gpudiag.explain.recipe import explain_text
from gpudiag.model.codec import encode
print(encode(explain_text(sys.stdin.read())))
"""
# One line or more for each entry of the table, and for torchrun's rows.
LINES = (
    *("  time      : 2026", "  host      : a", "  rank      : 3 (local_rank: 1)"),
    *("  exitcode  : 1 (pid: 7)", "  exitcode : 1", "  error_file: <N/A>", "  traceback : Signal 9"),
    *("Root Cause (first observed failure):", "failed (exitcode: 1)"),
    *("Sending process 7 closing signal SIGTERM", "srun: error: n1: task 3: Killed"),
    *("wait timeout after 9ms, keys: /default_pg/0", "3/4 clients joined"),
    *("Rank 1 failed to pass monitoredBarrier", "WorkNCCL(SeqNum=1", "last enqueued NCCL work: 7"),
    *("CollectiveFingerPrint(", "op.preamble.length", "node_rank=1", "node-rank 1", "Init COMPLETE"),
    *("Init START", "Bootstrap : Using eth0", "Bootstrap: Using eth0", "OOB eth0:1.2.3.4"),
    *("Got completion from peer", "retrieving ncclUniqueId from", "global_ranks=[0]"),
    *("Killed process 7 (python)", "python[7]: segfault at 0", "Name: train-0", "Node: n1/1.2.3.4"),
    *("Linux n1 6.1 #1 SMP", "will restart worker group", "exited on signal 9"),
    *("exits with return code = 1", "[rank: 1] Child process with PID 7 terminated with code 1"),
    *("[missing ranks: 1, 2]", "3: [DistributedAdam_HorovodAllreduce/a", "3: [allreduce.a"),
    *("Last enqueued NCCL work: 7", "Connection closed by remote peer n1<7>", "saved to /a/b"),
    *("Saving the model in /a/b", "/job:jax_worker/replica:0/task:3"),
    *("Task /job:jax_worker/replica:0/task:3 heartbeat timeout", "Global rank 2 (PID 7) exited with code 1"),
    *("Rank 2 crashed with exit code -7.", "Worker VllmWorkerProcess pid 7 died, exit code: -11"),
    "Child process unexpectedly failed with exitcode=-6. pid=1202",
    *("Rank 0 scheduler is dead. Please check", "Rank 0 scheduler died during initialization"),
    *("Exit code: -9", "Pod: ns.train-worker-0 exited with code 1"),
    "/job:jax_worker/replica:0/task:1 unexpectedly tried to connect with a different incarnation.",
    "MPI_ABORT was invoked on rank 3 in communicator",
    "application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1",
)


def test_each_line_of_a_launcher_is_read() -> None:
    classifier = Classifier()
    for line in LINES:
        assert LAUNCHER_MARK.search(line.encode()), line
        assert classifier.classify(shape_of(line.encode())).is_of_ranks, line
    for one in LAUNCHER_LINES:
        assert any(re.search(one.mark, line) for line in LINES), one


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
        assert kind.is_doubtful == (DOUBT_MARK.search(shape) is not None), shape
        assert kind.is_of_ranks == (LAUNCHER_MARK.search(shape) is not None), shape


def test_the_answer_is_the_same_whatever_order_a_set_has():
    text = next(one for one in texts() if one.kind == "several").text
    answers = {
        subprocess.run(
            (sys.executable, "-c", _EXPLAIN),
            input=text,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    assert len(answers) == 1
    assert "sightings" in answers.pop()
