r"""Compare `gpudiag watch` with nvitop on one simulated machine of 8 GPUs: start, cost and bytes, in one run.

Both run in a pseudo-terminal of 120 x 40, one after the other, in rounds. Start: wall and processor time
until the first GPU's name is drawn. Cost: processor time of the view's own process and of its children, in
per cent of one processor, while the machine works and nobody presses a key; a frame is what the view's
process takes from one reading to the next. Nothing here is a speed of a GPU: calls into a simulated driver
cost next to nothing, with `+driver-costs` what they cost on an H100.

    python benchmarks/watch_view.py [--rounds 3] [--seconds 30] [--interval 2] \
        [--scenario h100x8+busy:0+busy:1+driver-costs]
"""

import argparse
import contextlib
import fcntl
import importlib.metadata
import os
import platform
import pty
import select
import signal
import statistics
import struct
import sys
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpudiag.linux.proc import children, read_schedule, read_stat
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session

_SCRIPTS = Path(sys.executable).parent
SUBJECT, OTHER = "gpudiag watch", "nvitop"
_COLUMNS, _LINES = 120, 40
# Of the first GPU's row: its name, its memory; none stands in a heading.
_DRAWN = {SUBJECT: b"80GB", OTHER: b"79.65GiB"}
_PATIENCE_SECONDS = 60.0
_SETTLE_SECONDS = 8.0  # until imports that go on behind the first picture are over
_AIM_START_SECONDS, _AIM_PERCENT = 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one view."""

    wall_seconds: float  # to the first picture
    start_seconds: float  # of a processor, the same
    own_percent: float  # of one processor
    children_percent: float
    bytes_per_second: float
    resident_bytes: int  # of all its processes


def argv_of(name: str, interval: float) -> list[str]:
    """The command line of a view."""
    if name == SUBJECT:
        return [str(_SCRIPTS / "gpudiag"), "watch", "--interval", str(interval)]
    return [str(_SCRIPTS / "nvitop"), "--interval", str(interval)]


def measure(name: str, environment: Mapping[str, str], seconds: float, interval: float) -> Sample:
    """One run, ended by its key `q`. Raises RuntimeError: it draws nothing."""
    pid, terminal = pty.fork()
    if pid == 0:
        argv = argv_of(name, interval)
        # No shell is the point.
        os.execve(argv[0], argv, {**environment, "TERM": "xterm-256color"})  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    began, seen = time.monotonic(), b""
    try:
        while _DRAWN[name] not in seen:
            seen += _read(terminal)
            if time.monotonic() - began > _PATIENCE_SECONDS:
                raise RuntimeError(f"{name} has drawn nothing: {seen[-500:]!r}")
        wall = time.monotonic() - began
        start = _own_seconds(pid) + _children_seconds(pid)
        _drain(terminal, _SETTLE_SECONDS)
        own, others, began = _own_seconds(pid), _children_seconds(pid), time.monotonic()
        count = _drain(terminal, seconds)
        elapsed = time.monotonic() - began
        return Sample(
            wall,
            start,
            100 * (_own_seconds(pid) - own) / elapsed,
            100 * (_children_seconds(pid) - others) / elapsed,
            count / elapsed,
            sum(_resident(one) for one in (pid, *children(pid))),
        )
    finally:
        os.write(terminal, b"q")
        _drain(terminal, 1.0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def _read(terminal: int) -> bytes:
    if not select.select([terminal], [], [], 0.01)[0]:
        return b""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the program has ended
        return b""


def _drain(terminal: int, seconds: float) -> int:
    """Read for so long; the number of bytes."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        count += len(_read(terminal))
    return count


def _own_seconds(pid: int) -> float:
    """Processor time of all threads of the process."""
    return sum(read_schedule(f"{pid}/task/{thread}")[0] for thread in os.listdir(f"/proc/{pid}/task"))


def _children_seconds(pid: int) -> float:
    """Processor time of its children, those that have ended included."""
    running = sum(_own_seconds(child) for child in children(pid) if os.path.exists(f"/proc/{child}"))
    return running + read_stat(pid).children_cpu_seconds


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        return read_stat(pid).resident_bytes
    return 0


def render_table(samples: dict[str, list[Sample]], interval: float) -> str:
    """Medians, and gpudiag's share of nvitop's."""
    lines = [f"{'':34} {SUBJECT:>14} {OTHER:>10}  gpudiag is"]
    rows = (
        ("start, wall s", "wall_seconds", 1.0, 3),
        ("start, processor s", "start_seconds", 1.0, 3),
        ("cost of the view, % of a core", "own_percent", 1.0, 2),
        ("cost of its children, %", "children_percent", 1.0, 2),
        ("a frame, processor ms", "own_percent", interval * 10, 1),
        ("to the terminal, kB/s", "bytes_per_second", 1e-3, 2),
        ("memory, MiB", "resident_bytes", 1 / 1024**2, 0),
    )
    for words, name, factor, digits in rows:
        ours, theirs = (
            statistics.median(getattr(sample, name) for sample in samples[which]) * factor
            for which in (SUBJECT, OTHER)
        )
        ratio = f"{ours / theirs:.2f} of it" if theirs else ""
        lines.append(f"{words:34} {ours:14.{digits}f} {theirs:10.{digits}f}  {ratio}")
    return "\n".join(lines)


def main() -> int:
    """Run the comparison and print it; 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description="gpudiag watch against nvitop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=2.0)
    parser.add_argument("--scenario", default="h100x8+busy:0+busy:1+driver-costs")
    arguments = parser.parse_args()
    samples: dict[str, list[Sample]] = {SUBJECT: [], OTHER: []}
    with open_session(load_scenario(arguments.scenario)) as session:
        for _ in range(arguments.rounds):
            for name, taken in samples.items():
                taken.append(measure(name, session.environment, arguments.seconds, arguments.interval))
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("textual", "nvitop", "psutil")
    )
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    print(f"{arguments.scenario} (simulated), {arguments.rounds} rounds, every {arguments.interval:g} s")
    print(
        f"{os.cpu_count()} logical processors, load {load}, Linux {platform.release()}, Python"
        f" {platform.python_version()}, {versions}"
    )
    print(render_table(samples, arguments.interval))
    start = statistics.median(sample.start_seconds for sample in samples[SUBJECT])
    cost = statistics.median(sample.own_percent + sample.children_percent for sample in samples[SUBJECT])
    print(
        f"aims: start {start:.2f} of {_AIM_START_SECONDS} s of a processor; cost"
        f" {cost:.2f} of {_AIM_PERCENT} % of a core"
    )
    return 0 if start <= _AIM_START_SECONDS and cost <= _AIM_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
