"""Files shared among processes: the same answer, also where a process dies, and none left where one is
interrupted.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.errors import ExitStatus
from gpudiag.lint.linter import lint_files
from gpudiag.lint.rules import BY_CODE
from gpudiag.lint.shares import work_in_shares

FIRST = os.getpid()


def square(number: int) -> int:
    return number * number


def die_elsewhere(number: int) -> int:
    if os.getpid() != FIRST and number % 7 == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


@pytest.mark.sliced
@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("work", [square, die_elsewhere])
def test_each_item_is_worked_on_in_its_place(work, count) -> None:
    global FIRST
    FIRST = os.getpid()
    for length in (0, 1, 5, 40):
        assert work_in_shares(work, range(length), count) == [number * number for number in range(length)]


def test_a_fault_of_the_work_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        work_in_shares(lambda number: 1 // (number - 3), range(8), 4)


def test_files_are_linted_alike_by_one_and_by_many(tmp_path: Path) -> None:
    for number, rule in enumerate(list(BY_CODE.values())[:30]):
        (tmp_path / f"{number:02}.py").write_text(rule.read_examples().wrong)
    assert lint_files([tmp_path], processes=4) == lint_files([tmp_path], processes=1)


INTERRUPTED = """
import os, signal, sys, time
from gpudiag.cli import signals
from gpudiag.lint import linter
from gpudiag.cli.main import run
def wait(path):
    (print if os.getpid() != first else keep_quiet)("waits", flush=True)
    time.sleep(600)
def keep_quiet(*_, **__):
    while len(open("/proc/self/task/%d/children" % first).read().split()) < 2:
        time.sleep(0.01)
    os.kill(first, number)
first, number = os.getpid(), int(sys.argv[2])
linter.lint_file = wait
os.sched_getaffinity = lambda _: {0, 1, 2}
sys.argv[1:] = ["lint", sys.argv[1]]
run()
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, ExitStatus.INTERRUPTED), (signal.SIGTERM, ExitStatus.TERMINATED)]
)
def test_a_signal_ends_all_processes_in_words(tmp_path: Path, number: int, status: int) -> None:
    for name in range(30):
        (tmp_path / f"{name}.py").write_text("print(1)\n")
    done = subprocess.run(  # it ends when nobody holds its pipes: no process is left
        [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
