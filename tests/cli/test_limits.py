"""A limit on gpudiag itself (processes, threads, memory, files, /proc, folders) is never taken for a fault of
the machine.

A slice of `python -m benchmarks.limits_matrix`, which walks every command under every limit.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.limits_matrix import COMMANDS, LIMITED, run_limited, what_is_wrong, write_files
from gpudiag.cli.failures import describe_failure
from gpudiag.errors import ExitStatus, ShortageError
from gpudiag.probe.guard import collect, raise_shortage, start_guarded
from gpudiag.shortage import shortage_in, shortage_of
from tests.cli.simulated import simulated_machine

_QUICK = ("bare", "list-json", "instant", "history", "explain", "lint")
# What a limit is told by; none where the command may also do without.
_LIMITS = {
    "processes": "processes",
    "threads": "processes",
    "memory=100000": "",
    "files=12": "",
    "folders": "",
    "proc": "/proc",
}
# They start no process and read no /proc; the history's process has no thread.
_NEED_NOTHING = ("explain", "lint")
_DO_WITHOUT = {"threads": ("history",)}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], Path]]:
    folder = tmp_path_factory.mktemp("limits")
    write_files(folder)
    with simulated_machine("h100x8") as session:
        environment = {**session.environment, "GPUDIAG_STATE_DIR": str(folder / "state")}
        environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        yield environment, folder


@cache
def can_be_set(limit: str) -> bool:
    argv = [sys.executable, str(LIMITED), limit, "--", "true"]
    return b"Traceback" not in subprocess.run(argv, capture_output=True, check=False, timeout=60).stderr


@pytest.mark.sliced
@pytest.mark.parametrize("limit", _LIMITS)
def test_a_limit_is_a_sentence_and_exit_status_3_in_every_command(limit, machine):
    if not can_be_set(limit):
        pytest.skip(
            f"the limit {limit} cannot be set here: seccomp, or a mount namespace of one's own, is refused"
        )
    environment, folder = machine
    wrong = []
    for command in _QUICK:
        status, _, errors = run_limited(limit, COMMANDS[command], environment, folder)
        fault = what_is_wrong(status, errors, (0,))
        expected = _LIMITS[limit]
        named = status == ExitStatus.ERROR and expected in errors
        spared = command in (*_NEED_NOTHING, *_DO_WITHOUT.get(limit, ()))
        if expected and not spared and not named:
            fault = fault or "the limit is not named"
        if fault:
            wrong.append(f"{command}: {fault}: {errors.strip()[:300]}")
    assert not wrong, "\n".join(wrong)


def test_a_process_that_is_refused_at_any_moment_is_a_shortage():
    """The first fork lies before the command, those of the kernel log and the host's state in it."""
    program = (
        "import os, sys, gpudiag.cli.main as entry\n"
        "left, fork = [int(os.environ['FORKS'])], os.fork\n"
        "def counted():\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "    return fork()\n"
        "os.fork = counted\n"
        "sys.argv = ['gpudiag', 'preflight', '--level', 'instant']\n"
        "entry.run()\n"
    )
    for forks in range(5):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "FORKS": str(forks)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (ExitStatus.ERROR, False), (
            forks,
            done.stderr,
        )
        assert "no more processes may be started here" in done.stderr


def test_what_a_guarded_child_is_refused_is_its_parents_shortage():
    child = start_guarded("tests.unit.probe.guarded_probes:exhaust_memory")
    collect([(child, child.started_at + 60)])
    assert child.ending == "raised"
    with pytest.raises(ShortageError, match="memory"):
        raise_shortage([None, child])


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (RuntimeError("can't start new thread"), "processes"),
        (OSError("libtorch_cpu.so: failed to map segment from shared object"), "memory"),
        (ImportError("libcublas.so.12: failed to map segment from shared object"), "memory"),
    ],
)
def test_every_sign_of_a_limit_is_exit_status_3(error, word):
    failure = describe_failure(error)
    assert failure.status is ExitStatus.ERROR
    assert word in failure.lines[0]
    assert "bug" not in " ".join(failure.lines)


@pytest.mark.parametrize(
    "error",
    [
        BlockingIOError(errno.EAGAIN, "write could not complete without blocking"),
        RuntimeError("a thread has died"),
        ImportError("cannot import name 'x'"),
    ],
)
def test_what_is_no_sign_of_a_limit_is_none(error):
    assert shortage_of(error) is None


def test_a_gpu_that_is_out_of_memory_is_no_lack_of_gpudiag():
    assert shortage_in("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB") is None
    assert shortage_in("MemoryError") is not None
