"""What benchmarks that disturb runs from outside share: a run in its session, its ranks, groups."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpudiag.linux.cgroup import read_mounts

MARK = "GPUDIAG_BENCHMARK_MARK"
_THAW_SECONDS = 5.0


@dataclass
class Program:
    """One run of gpudiag, its processes found by a mark in their environment."""

    command: list[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self) -> "subprocess.Popen[str]":
        """Start it in a session of its own, as a launcher would."""
        return subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.variables, MARK: self.mark},
            start_new_session=True,
        )

    def pids(self) -> list[int]:
        """Its processes that are there."""
        wanted, found = f"{MARK}={self.mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if wanted in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def ranks(self) -> dict[int, int]:
        """The processes of its ranks by rank, as far as they have come up."""
        found = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if name.startswith("gpudiag-rank"):
                    found[int(name.removeprefix("gpudiag-rank"))] = pid
        return found

    def await_ranks(self, count: int, seconds: float = 300.0) -> dict[int, int]:
        """Its ranks once there are so many. Raises TimeoutError: they do not come."""
        deadline = time.monotonic() + seconds
        while len(ranks := self.ranks()) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(ranks)} of {count} ranks came up")
            time.sleep(0.02)
        return ranks

    def kill(self) -> None:
        """Leave nothing of it."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def launch(launcher: str, ranks: int, *words: str) -> list[str]:
    """The command line of gpudiag on so many ranks."""
    if launcher == "spawn":
        return [sys.executable, "-m", "gpudiag", words[0], "--nproc", str(ranks), *words[1:]]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return [sys.executable, *torchrun, "-m", "gpudiag", *words]


@contextlib.contextmanager
def control_group(controller: str) -> Iterator[Path]:
    """A control group of our own for that controller, in whichever version has it; removed at the end."""
    mounts = read_mounts()
    if controller not in mounts and "" not in mounts:
        raise LookupError(f"no control groups for {controller} here")
    folder = mounts.get(controller, mounts.get("", ("", Path())))[1] / f"gpudiag-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        yield folder
    finally:
        for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            if (folder / name).exists():
                (folder / name).write_text(value)
        deadline = time.monotonic() + _THAW_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.05)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes beside, a job in a session of its own, that do nothing but use the processor."""
    if not count:
        yield
        return
    start = 'for _ in $(seq "$1"); do (while :; do :; done) & done; wait'
    command = ["sh", "-c", start, "sh", str(count)]
    with subprocess.Popen(command, start_new_session=True) as job:
        try:
            yield
        finally:
            os.killpg(job.pid, signal.SIGKILL)
