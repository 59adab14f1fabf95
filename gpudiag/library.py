"""gpudiag for Python programs: what `gpudiag.list_devices` and its like are. See docs/python-api.md.

Each call runs gpudiag's own command in a child process and returns the document that it prints, as a noun of
`gpudiag.model`. So it may be made anywhere: in a thread, in a notebook, beside a framework that has started
CUDA. It installs no signal handler here, prints nothing and never exits. What hangs, hangs in the child,
which has a deadline.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gpudiag.checks.traces import gpu_traces
from gpudiag.errors import ExitStatus, GpudiagError, SourceAbsentError, SourceFailedError, UsageError
from gpudiag.model.device import Device, Snapshot, SourceState
from gpudiag.model.documents import loads
from gpudiag.model.report import Report
from gpudiag.ranks.environment import LAUNCHER_VARIABLES
from gpudiag.shortage import shortage_of

_Document = TypeVar("_Document", Snapshot, Report)

# The child finds this gpudiag wherever it was imported from, dies with us, and leaves the current folder off
# its path.
_CHILD = (
    "import ctypes, os, sys; sys.path[:1] == [''] and sys.path.pop(0); ctypes.CDLL(None).prctl(1, 15, 0, 0,"
    " 0); os.getppid() == int(sys.argv.pop(1)) or sys.exit(143); sys.path.append(sys.argv.pop(1));"
    " from gpudiag.cli.main import run; run()"
)
_FOLDER = str(Path(__file__).resolve().parents[1])
_NOTICE_SECONDS = 60.0  # beyond the command's own deadlines; a busy machine starts a child slowly
_CLEAN_UP_SECONDS = 20.0  # for its ranks to be ended
_REAP_SECONDS = 1.0
# Above what the levels take by their own deadlines (docs/findings.md); level long takes as long as its load.
_LEVEL_SECONDS = {
    "instant": 30.0,
    "quick": 1800.0,
    "standard": 7200.0,
    "long": 14400.0,
    "acceptance": 14400.0,
}


def take_snapshot(*, deadline_seconds: float = 5.0) -> Snapshot:
    """What this machine and its GPUs are now, as `gpudiag list --json` has it.

    A source that fails, or a GPU that hangs, raises nothing: `snapshot.source("nvml")` has its state, and
    each field is a value or a `Missing` with the reason.

    Raises:
        UsageError: the deadline is no positive number of seconds.
        GpudiagError: gpudiag itself could not be run.
    """
    command = ["list", "--json", "--deadline", str(deadline_seconds)]
    return _run(command, Snapshot, deadline_seconds + _NOTICE_SECONDS)


def list_devices(*, deadline_seconds: float = 5.0) -> tuple[Device, ...]:
    """The GPUs of this machine, in NVML's order; empty only where there is no trace of one.

    A GPU that is lost or hangs is among them: its `responding` is a `Missing`, as are its readings.

    Raises:
        SourceAbsentError: the driver's library is not here, though something shows that there is a GPU.
        SourceFailedError: NVML could not be asked, or lists no GPU where there is one.
        UsageError, GpudiagError: as `take_snapshot`.
    """
    snapshot = take_snapshot(deadline_seconds=deadline_seconds)
    if snapshot.devices:
        return snapshot.devices
    traces = gpu_traces(snapshot)
    if not traces:
        return ()
    status = snapshot.source("nvml")
    words = f"no GPU can be listed here: {status.reason or status.state.value} ({traces[0].text})"
    absent = status.state is SourceState.LIBRARY_ABSENT
    raise (SourceAbsentError if absent else SourceFailedError)(words, hint="see `gpudiag preflight`")


def preflight(
    level: str = "quick",
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    expect_gpus: int | None = None,
    python: str | None = None,
    store: str | None = None,
    timeout_seconds: float | None = None,
) -> Report:
    """The report on this machine, as `gpudiag preflight --json` has it: may it train?

    A faulty machine raises nothing: `report.verdict` is FAIL, and `report.findings()` have the reasons;
    ERROR: gpudiag reached no verdict. Level `instant` only reads, the others start work on GPUs that nobody
    uses. The parameters are the flags of the command; `timeout_seconds` ends it, by default after what the
    level takes at most.

    Raises:
        UsageError: there is no such level or check, or two parameters contradict each other.
        GpudiagError: gpudiag itself could not be run, or did not end in time.
    """
    command = ["preflight", "--json", "--level", level]
    for flag, value in (
        ("--only", ",".join(only)),
        ("--skip", ",".join(skip)),
        ("--expect-gpus", expect_gpus),
        ("--python", python),
        ("--store", store),
    ):
        if value not in ("", None):
            command += [flag, str(value)]
    limit = _LEVEL_SECONDS.get(level, _NOTICE_SECONDS) + _NOTICE_SECONDS
    return _run(command, Report, limit if timeout_seconds is None else timeout_seconds)


def _run(command: Sequence[str], expected: type[_Document], limit_seconds: float) -> _Document:
    """The document that gpudiag prints when it is run with these arguments."""
    argv = [sys.executable, "-c", _CHILD, str(os.getpid()), _FOLDER, *command]
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    try:
        child = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        if (shortage := shortage_of(error)) is not None:
            raise shortage from error
        raise GpudiagError(f"gpudiag could not be started: {error.strerror or error}") from error
    try:
        out, errors = child.communicate(timeout=limit_seconds)
    except BaseException as error:  # also Ctrl-C: its ranks must not stay
        _end(child)
        if isinstance(error, subprocess.TimeoutExpired):
            words = f"gpudiag {command[0]} did not end within {limit_seconds:g} s"
            raise GpudiagError(words, hint="give it more timeout_seconds, or a lower level") from None
        raise
    if out.strip():
        document = loads(out)
        if isinstance(document, expected):
            return document
    raise _error_of(child.returncode, errors)


def _end(child: "subprocess.Popen[str]") -> None:
    """End the child, and leave it the time to end its own.

    One that the kernel cannot end is not waited for.
    """
    child.terminate()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(_CLEAN_UP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_REAP_SECONDS)


def _error_of(status: int, errors: str) -> GpudiagError:
    """What the command wrote about its end, as the exception that it was."""
    lines = errors.rstrip().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("gpudiag: ")]
    if not starts:
        return GpudiagError(f"gpudiag ended with status {status} and no report", hint="; ".join(lines[-3:]))
    message = lines[starts[-1]].removeprefix("gpudiag: ")
    hint = " ".join(line.strip() for line in lines[starts[-1] + 1 :])
    kind = UsageError if status == ExitStatus.USAGE else GpudiagError
    return kind(message, hint=hint)
