"""Readings of a stack that changes while it is read: by a program that answers as py-spy does, one answer
after the other.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.job import py_spy
from gpudiag.probe.job.py_spy import STOPPED_FOR_A_MOMENT, read_stacks
from tests.walking import walk

PID = 7
ERROR = "Error: Failed to copy PyThreadState"
WHOLE, TORN, EMPTY = ["compute", "main", "<module>"], ["compute"], []
# What py-spy answers by and by: functions of the main thread, or an error; then what is made of it, and how
# often it was asked.
READINGS = {
    "whole": ([WHOLE], True, WHOLE, 1),
    "torn, then whole": ([TORN, WHOLE], True, WHOLE, 2),
    "empty twice, then whole": ([EMPTY, EMPTY, WHOLE], False, WHOLE, 3),
    "an error, then whole": ([ERROR, WHOLE], False, WHOLE, 2),
    "torn again and again": ([TORN, EMPTY, ["compute", "main"], TORN], True, ["compute", "main"], 4),
    "empty until it is stopped": ([EMPTY, EMPTY, EMPTY, EMPTY, WHOLE], True, WHOLE, 5),
    "errors until it is stopped": ([ERROR, ERROR, ERROR, ERROR, WHOLE], True, WHOLE, 5),
    "runs no Python code yet": ([EMPTY] * 5, True, EMPTY, 5),
    "empty, and must not be stopped": ([EMPTY] * 4, False, EMPTY, 4),
    "gone after an empty one": ([EMPTY, "Error: No such process"], True, EMPTY, 2),
}


def answers(folder: Path, given: list[list[str] | str]) -> Path:
    for number, answer in enumerate(given):
        frames = [{"filename": "/job/a.py", "name": name, "line": 1, "locals": []} for name in answer]
        threads = [{"os_thread_id": PID, "thread_name": "MainThread", "frames": frames}]
        (folder / str(number)).write_text(answer if isinstance(answer, str) else json.dumps(threads))
    program = folder / "py-spy"
    program.write_text(
        f"""#!/bin/sh
cd {folder}; n=$(ls asked* 2>/dev/null | wc -l); echo "$@" > asked$n
case "$(cat $n)" in Error*) cat $n >&2; exit 1;; *) cat $n;; esac
"""
    )
    program.chmod(0o755)
    return program


@walk(READINGS)
def test_a_torn_or_empty_stack_is_read_again(name: str) -> None:
    given, may_stop, functions, asked = READINGS[name]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        program = str(answers(Path(folder), given))
        patch.setattr(py_spy, "find_py_spy", lambda: program)
        read = read_stacks(PID, may_stop=may_stop, timeout_seconds=60)
        calls = [path.read_text() for path in sorted(Path(folder).glob("asked*"))]
    assert not isinstance(read, Missing)
    threads, source = read
    assert [frame.function for frame in threads[PID].frames] == functions
    assert len(calls) == asked
    assert (source == STOPPED_FOR_A_MOMENT) == ("--nonblocking" not in calls[-1])


def test_a_program_that_runs_no_python_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = answers(tmp_path, ["Error: Failed to find python version from target process"])
    monkeypatch.setattr(py_spy, "find_py_spy", lambda: str(program))
    read = read_stacks(PID, may_stop=True, timeout_seconds=60)
    assert isinstance(read, Missing)
    assert read.reason is MissingReason.NOT_SUPPORTED
