"""C functions in py-spy's JSON, as it read them of jobs on an H100 and an H200."""

import json
import signal
import subprocess
import sys
from time import sleep
from typing import Any

import pytest

from gpudiag.linux.proc import read_stat
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.job import py_spy
from gpudiag.probe.job.py_spy import parse_native
from gpudiag.reference.waits import find_native_wait
from tests.recorded_hangs import ON_GPUS, facts_of
from tests.walking import walk

NAMES = sorted(path.name.removesuffix(".facts.json.gz") for path in ON_GPUS.glob("*.facts.json.gz"))
# What each rank waited for: `-` is no wait of the driver's or of NCCL's.
WAITED = {"fifo": "gpu -", "jax_hang": "gpu", "lit_callback": "gpu -", "loader": "gpu -"} | {
    "order": "ranks ranks",
    "pyloop": "gpu -",
    "slow": "gpu -",
    "stop": "gpu ?",
}


@walk(NAMES, lambda name: name)
def test_each_rank_is_in_the_wait_that_it_was_in(name: str) -> None:
    told = []
    for rank in facts_of(name)["ranks"]:
        native = parse_native(rank["py_spy_native_json"]["out"], rank["pid"])
        if isinstance(native, Missing):  # of a stopped rank, which could not be stopped again
            told.append("?")
            continue
        wait = find_native_wait(native)
        told.append("-" if wait is None else wait.awaited)
    assert " ".join(told) == WAITED.get(name, "gpu gpu")


def frame(name: str, module: str | None) -> dict[str, object]:
    return {"name": name, "module": module, "filename": "x", "short_filename": "x", "line": 0}


def test_a_frame_of_an_unknown_library_does_not_hide_those_below_it() -> None:
    frames = [
        frame("clock_gettime", "/lib/libc.so.6"),
        frame("0x1", None),
        frame("cuStreamSynchronize", "/lib/libcuda.so.1"),
        frame("main", None),
        frame("__libc_start_main", "/lib/libc.so.6"),
    ]
    text = json.dumps([{"os_thread_id": 7, "frames": frames}])
    assert parse_native(text, 7) == ("clock_gettime (libc.so.6)", "cuStreamSynchronize (libcuda.so.1)")


def test_a_thread_in_pythons_own_loop_has_that_as_its_function() -> None:
    text = json.dumps([{"os_thread_id": 7, "frames": [frame("main", None)]}])
    assert parse_native(text, 7) == ("_PyEval_EvalFrameDefault",)


def test_an_answer_without_the_thread_is_no_stack() -> None:
    assert isinstance(parse_native("[]", 7), Missing)
    assert isinstance(parse_native("no JSON", 7), Missing)


def test_a_process_that_a_killed_reader_left_stopped_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in py-spy's place stops the process, as an attach does, and never answers."""
    with subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)"]) as job:
        try:
            program = f"#!/bin/sh\nkill -STOP {job.pid}\nexec sleep 600\n"
            monkeypatch.setattr(py_spy, "find_py_spy", lambda: "sh")
            run = subprocess.run

            def instead(argv: list[str], **named: Any) -> Any:
                return run(["sh", "-c", program], **named)

            monkeypatch.setattr(py_spy.subprocess, "run", instead)
            told = py_spy.read_native(job.pid, timeout_seconds=3.0)
            assert isinstance(told, Missing)
            assert told.reason is MissingReason.TIMED_OUT
            stat = read_stat(job.pid)
            assert stat.state != "T"
        finally:
            job.kill()


def test_the_time_for_which_a_process_is_held_is_measured() -> None:
    with subprocess.Popen(["sleep", "600"]) as job:
        try:
            with py_spy.StopWatch(job.pid) as free:
                pass
            with py_spy.StopWatch(job.pid) as held:
                job.send_signal(signal.SIGSTOP)
                while not held.seconds:
                    sleep(0.01)
                job.send_signal(signal.SIGCONT)
            assert free.seconds == 0.0
            assert held.seconds > 0
        finally:
            job.kill()
