"""One fault that is planted from outside of gpudiag, and what was reported."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.outside import Program, control_group, launch

LAUNCHERS = ("spawn", "torchrun")
RANKS = 3
_LIMIT_SECONDS = 240.0
_MEMORY_BYTES = 24 << 20
_QUOTA_MICROSECONDS = 1000  # of each 100 ms

_TEST = (
    "nccl-test",
    "--backend",
    "gloo",
    "--min-bytes",
    "1K",
    "--max-bytes",
    "4K",
    "--iterations",
    "3000",
    "--verify",
    "last",
    "--json",
)
_LARGE = ("nccl-test", "--backend", "gloo", "--min-bytes", "16M", "--max-bytes", "64M", "--json")
_SCRIPT = Path(__file__).with_name("faulty_script.py")


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault, as a launcher's ranks meet it."""

    launcher: str
    fault: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run reported, held against what was planted."""

    right: bool  # the first finding: a code that fits the fault, the rank, and a word of how it failed
    seconds: float | None  # from the fault to the end of the run
    left: int  # processes
    answer: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What may be reported of a fault: codes of the first finding, and a part of its message or evidence."""

    codes: tuple[str, ...]
    words: str = ""


_HUNG = Expected(("train.script_hung",))
EXPECTED: Mapping[str, Expected] = MappingProxyType(
    {
        "SIGKILL": Expected(("rank.died",), "SIGKILL"),
        "SIGSEGV": Expected(("rank.died",), "SIGSEGV"),
        "SIGTERM": Expected(("rank.died",), "SIGTERM"),
        "SIGSTOP": Expected(("rank.stopped",), "stopped by a signal"),
        "freezer": Expected(("rank.stopped",), "frozen"),
        "quota": Expected(("rank.silent", "rank.throttled"), "quota"),
        "memory limit": Expected(("rank.died",), "OOM killer"),
        "import fails": Expected(("rank.raised", "rank.start_failed"), "no_such_library"),
        "full /dev/shm": Expected(("rank.raised", "train.script_failed"), "shared memory"),
        "early exit": Expected(("rank.ended_early",)),
        "spin": _HUNG,
        "blocked read": _HUNG,
        "lock": _HUNG,
        "short batch": Expected(("rank.ended_early", "train.script_hung")),
        "other collective": Expected(("train.script_hung", "rank.raised", "collective.mismatched")),
        "other shape": Expected(("train.script_hung", "rank.raised", "collective.mismatched", "rank.died")),
    }
)
_SIGNALS = {name: getattr(signal, name) for name in ("SIGKILL", "SIGSEGV", "SIGTERM", "SIGSTOP")}


def observe(cell: Cell, victim: int, folder: Path) -> Seen:
    """Plant the fault once, and hold what comes back against it.

    Raises:
        TimeoutError: the ranks never came up, so nothing was planted.
    """
    program = Program(_command(cell, victim), _variables(cell, victim, folder))
    with ExitStack() as planted:
        process = program.start()
        planted.callback(program.kill)
        began = _plant(cell, program, victim, planted)
        try:
            output, errors = process.communicate(timeout=_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return Seen(False, None, 0, f"no end in {_LIMIT_SECONDS:.0f} s")
        seconds = time.monotonic() - began
        left = _left(program, frozen=cell.fault == "freezer")
    return _judge(cell, victim, process.returncode, output, errors, seconds, left)


def _command(cell: Cell, victim: int) -> list[str]:
    if cell.fault in (*_SIGNALS, "freezer", "quota", "import fails"):
        return launch(cell.launcher, RANKS, *_TEST)
    if cell.fault == "memory limit":
        return launch(cell.launcher, RANKS, *_LARGE)
    words = ("train", "--backend", "gloo", "--hang-after", "1", "--json", "--script", str(_SCRIPT))
    command = launch(cell.launcher, RANKS, *words, cell.fault, str(victim))
    if cell.fault == "full /dev/shm":
        fill = (
            'mount -t tmpfs -o size=256k tmpfs /dev/shm && head -c 100k /dev/zero > /dev/shm/full; exec "$@"'
        )
        return ["unshare", "--mount", "sh", "-c", fill, "sh", *command]
    return command


def _variables(cell: Cell, victim: int, folder: Path) -> dict[str, str]:
    if cell.fault != "import fails":
        return {}
    # As on a host whose installation of torch is broken. Without a launcher, all ranks share one import.
    own = f'os.environ.get("RANK", "{victim}") == "{victim}"'
    folder.joinpath("sitecustomize.py").write_text(
        "import os, sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch' and 'boot.py' in ' '.join(sys.orig_argv):\n"
        "            raise ImportError('libno_such_library.so: cannot open shared object file')\n"
        f"if {own}:\n"
        "    sys.meta_path.insert(0, Broken())\n"
    )
    return {"PYTHONPATH": str(folder)}


def _plant(cell: Cell, program: Program, victim: int, planted: ExitStack) -> float:
    """Do it to the running program; when, on the monotonic clock."""
    if cell.fault in _SIGNALS:
        pid = _await_measuring(program)[victim]
        os.kill(pid, _SIGNALS[cell.fault])
    elif cell.fault in ("freezer", "quota"):
        controller = "freezer" if cell.fault == "freezer" else "cpu"
        folder = planted.enter_context(control_group(controller))
        pid = _await_measuring(program)[victim]
        if cell.fault == "quota":
            _set(
                folder,
                {"cpu.cfs_quota_us": str(_QUOTA_MICROSECONDS), "cpu.max": f"{_QUOTA_MICROSECONDS} 100000"},
            )
        (folder / "cgroup.procs").write_text(str(pid))
        if cell.fault == "freezer":
            _set(folder, {"freezer.state": "FROZEN", "cgroup.freeze": "1"})
    elif cell.fault == "memory limit":
        folder = planted.enter_context(control_group("memory"))
        _set(folder, {"memory.limit_in_bytes": str(_MEMORY_BYTES), "memory.max": str(_MEMORY_BYTES)})
        pid = _await_rank(program, victim)
        (folder / "cgroup.procs").write_text(str(pid))
    return time.monotonic()


def _await_rank(program: Program, victim: int) -> int:
    deadline = time.monotonic() + 300.0
    while (pid := program.ranks().get(victim)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {victim} did not come up")
        time.sleep(0.005)
    return pid


def _await_measuring(program: Program) -> dict[int, int]:
    """The ranks, somewhere in their work: a moment that differs from run to run."""
    ranks = program.await_ranks(RANKS)
    time.sleep(0.5 + time.time() % 1.5)
    return ranks


def _set(folder: Path, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        if (folder / name).exists():
            (folder / name).write_text(value)


def _left(program: Program, *, frozen: bool) -> int:
    """The processes that are there two seconds later; a frozen one of cgroup v1 dies when it is thawed."""
    deadline = time.monotonic() + 2.0
    while (left := len(program.pids())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return max(0, left - frozen)


def _judge(cell: Cell, victim: int, status: int, output: str, errors: str, seconds: float, left: int) -> Seen:
    try:
        report: dict[str, Any] = json.loads(output)
    except ValueError:
        return Seen(False, None, left, f"exit {status}, no report: {errors.strip()[-300:]}")
    expected = EXPECTED[cell.fault]
    first = next(iter(_findings(report)), None)
    if first is None:
        return Seen(False, seconds, left, f"exit {status}, no finding")
    text = first["message"] + " " + " ".join(str(fact["value"]) for fact in first["evidence"])
    subject = first["subject"]
    shared = cell.fault == "import fails" and cell.launcher == "spawn"
    named = subject.get("kind") == "host" if shared else subject.get("rank") == victim
    right = first["code"] in expected.codes and named and expected.words in text
    return Seen(right, seconds, left, f"rank {victim}: {first['code']}: {first['message'][:160]}")


def _findings(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The findings that are about ranks, the cause first."""
    for finding in report["findings"]:
        if not finding["code"].startswith(("host.", "gpu.", "nvml.")):
            yield finding
