"""Runs `gpudiag nccl-test` as a user does, in a process of its own, and looks for what it leaves."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.warm_start import REPOSITORY, WarmProcess, start_python

LIMIT_SECONDS = 180.0  # proves that nothing hangs; says nothing about speed

_MARK = "GPUDIAG_TEST_MARK"
_LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
)
GPUDIAG = (sys.executable, "-m", "gpudiag", "nccl-test", "--backend", "gloo")


@dataclass(frozen=True)
class Completed:
    """What a command printed, how it ended, and the processes that it left behind."""

    status: int
    output: str
    error: str
    left_behind: tuple[int, ...]

    def document(self) -> Any:
        """The one JSON document on standard output."""
        assert self.output, f"exit status {self.status} and no document, but: {self.error}"
        return json.loads(self.output)


@dataclass(frozen=True)
class Started:
    """A running command, and the mark that all its processes carry."""

    process: "WarmProcess | subprocess.Popen[bytes]"
    mark: str
    output: IO[bytes]
    error: IO[bytes]

    def finish(self, limit_seconds: float = LIMIT_SECONDS) -> Completed:
        """Its end, within the limit."""
        status = self.process.wait(limit_seconds)
        texts = [
            os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in (self.output, self.error)
        ]
        output, error = (text.decode() for text in texts)
        return Completed(status, output, error, remaining_processes(self.mark))


@contextmanager
def started(*command: str) -> Iterator[Started]:
    """The running command, killed at the end; gpudiag's own is forked from a process that has its modules."""
    mark = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHER_VARIABLES}
    environment |= {_MARK: mark, "PYTHONPATH": str(REPOSITORY)}
    with ExitStack() as files:
        stdin = files.enter_context(open(os.devnull, "rb"))
        output, error = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        if command[:3] == GPUDIAG[:3]:
            places = (stdin.fileno(), output.fileno(), error.fileno())
            process = start_python(command[1:], environment, *places)
        else:
            process = subprocess.Popen(
                command, env=environment, stdin=stdin, stdout=output, stderr=error, start_new_session=True
            )
        try:
            yield Started(process, mark, output, error)
        finally:
            for pid in marked_processes(mark):
                os.kill(pid, signal.SIGKILL)
            process.kill()  # had it no mark yet
            process.wait(LIMIT_SECONDS)


def run(*command: str, limit_seconds: float = LIMIT_SECONDS) -> Completed:
    """The command's end, within the limit."""
    with started(*command) as running:
        return running.finish(limit_seconds)


def nccl_test(*flags: str) -> Completed:
    """`gpudiag nccl-test --backend gloo` with those flags."""
    return run(*GPUDIAG, *flags)


def torchrun(world_size: int, *flags: str) -> Completed:
    """The same under torchrun, one process per rank."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world_size))
    return run(*launcher, "--standalone", *GPUDIAG[1:], *flags)


def marked_processes(mark: str) -> tuple[int, ...]:
    """The pids of the living processes that carry the mark in their environment."""
    found = []
    wanted = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return tuple(found)


def remaining_processes(mark: str) -> tuple[int, ...]:
    """Those that are still there two seconds later: what dies with its parent needs a moment."""
    deadline = time.monotonic() + 2.0
    while (found := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found
