"""Run a command with a deadline, so that one that hangs costs its own time and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tools.confirm_on_gpu.step import Output

# gpudiag ends its ranks when it is asked to end; what is in the driver's hands may take a while, or never
# end.
_GRACE_SECONDS = 5.0


def run_child(
    command: Sequence[str],
    *,
    deadline_seconds: float,
    stdout: Path,
    stderr: Path,
    environment: Mapping[str, str],
    folder: Path,
    grace_seconds: float = _GRACE_SECONDS,
    started_as: Callable[[int], None] = lambda pid: None,
) -> Output:
    """How the command ended, within the deadline or, killed with all that it started, soon after it.

    `started_as` gets its pid, which leads its process group. Its streams go to files: a grandchild that
    outlives it would hold a pipe open, and the reader with it.

    Raises:
        OSError: the command cannot be started.
    """
    started = time.monotonic()
    with stdout.open("wb") as out, stderr.open("wb") as err:
        # A signal that ended this process here would leave a child that nobody knows.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
                preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, before),
            )
        except BaseException:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        started_as(child.pid)
        status: int | None = child.wait(deadline_seconds)
        killed = True
    except subprocess.TimeoutExpired:
        status, killed = None, _end(child, grace_seconds)
    except BaseException:
        _end(child, grace_seconds)
        raise
    with suppress(ProcessLookupError):  # what it left behind, also where it ended well
        os.killpg(child.pid, signal.SIGKILL)
    return Output(status, time.monotonic() - started, stdout, stderr, killed)


def _end(child: subprocess.Popen[bytes], grace_seconds: float) -> bool:
    """Whether the child ended: by its own clean-up, else killed; one in the driver's hands may not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace_seconds)
            return True
    return False
