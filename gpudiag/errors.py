"""Every exception that gpudiag raises on purpose, and the exit status of each.

GpudiagError            something a person must act on; carries code, message and hint
├── UsageError          exit 2   a bad flag, plan, setting, or a missing extra
│   └── UnknownSchemaError       a document of a schema that this version does not know
├── SourceError         exit 3   a source could not be asked
│   ├── SourceAbsentError        its library or program is not installed
│   ├── SourceFailedError        it is there, and it failed
│   └── DeviceLostError          one device no longer answers
├── LaunchError         exit 3   ranks could not be started
│   ├── RankStartError           a rank's process did not come up
│   ├── RendezvousError          the ranks did not meet, and no cause was found
│   ├── CommandNotFoundError     exit 127: there is no such command, as in a shell
│   └── CommandRefusedError      exit 126: it cannot be executed
├── ShortageError       exit 3   gpudiag itself was refused processes, threads, memory, files or /proc
├── RunError            exit 3   a run could not be found, started or followed
│   ├── RunNotFoundError
│   ├── RunConflictError         the GPUs it needs are busy
│   └── RunCancelledError
└── StoreError          exit 3   the history could not be read or written

Bad hardware, a dead rank or a wrong sum is never an exception: it is a Finding. An exception means
that gpudiag could not look, or that the caller made a mistake.
"""

from enum import IntEnum
from typing import ClassVar


class ExitStatus(IntEnum):
    """The exit statuses of every gpudiag command, in one place."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    ERROR = 3
    INTERNAL = 70  # EX_SOFTWARE of sysexits.h: our bug, never the user's machine
    NOT_EXECUTABLE = 126  # a command of the user's, as shells report it
    NOT_FOUND = 127
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it
    PIPE_CLOSED = 141  # 128 + SIGPIPE: the reader of the output went away before its end
    TERMINATED = 143  # 128 + SIGTERM


class GpudiagError(Exception):
    """Something a person must act on: `message`: what and where; `hint`: what to do next."""

    code: ClassVar[str] = "gpudiag.error"
    exit_status: ClassVar[ExitStatus] = ExitStatus.ERROR
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep the message for the user and the next step."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GpudiagError):
    """A bad flag, plan or setting, or an extra that is not installed."""

    code = "usage"
    exit_status = ExitStatus.USAGE
    http_status = 422


class UnknownSchemaError(UsageError):
    """A document of a schema that this version does not know."""

    def __init__(self, schema: str, *, hint: str = "use a newer gpudiag") -> None:
        """Name the schema."""
        super().__init__(f"this gpudiag does not know the schema {schema!r}", hint=hint)


class SourceError(GpudiagError):
    """A source (NVML, GPUtil, torch, the host) could not be asked."""

    code = "source"
    http_status = 503


class SourceAbsentError(SourceError):
    """The source's library or program is not installed."""

    code = "source.absent"


class SourceFailedError(SourceError):
    """The source is installed, and it failed."""

    code = "source.failed"


class DeviceLostError(SourceError):
    """One device no longer answers; the others still may."""

    code = "source.device_lost"


class LaunchError(GpudiagError):
    """Ranks could not be started."""

    code = "launch"
    http_status = 502


class RankStartError(LaunchError):
    """A rank's process did not come up."""

    code = "launch.rank_start"


class RendezvousError(LaunchError):
    """The ranks did not meet, and no cause was found."""

    code = "launch.rendezvous"


class CommandNotFoundError(LaunchError):
    """There is no such command as `gpudiag run` was to start."""

    code = "launch.command_not_found"
    exit_status = ExitStatus.NOT_FOUND


class CommandRefusedError(LaunchError):
    """The command of `gpudiag run` is there, and it cannot be executed."""

    code = "launch.command_refused"
    exit_status = ExitStatus.NOT_EXECUTABLE


class ShortageError(GpudiagError):
    """This process was refused what it needs itself; nothing is known of the machine.

    See gpudiag/shortage.py.
    """

    code = "shortage"
    http_status = 503


class RunError(GpudiagError):
    """A run could not be found, started or followed."""

    code = "run"


class RunNotFoundError(RunError):
    """There is no run with that id."""

    code = "run.not_found"
    http_status = 404


class RunConflictError(RunError):
    """The GPUs that the run needs are held by another run."""

    code = "run.conflict"
    http_status = 409


class RunCancelledError(RunError):
    """Someone cancelled the run."""

    code = "run.cancelled"
    http_status = 409


class StoreError(GpudiagError):
    """The history could not be read or written."""

    code = "store"
    http_status = 503
