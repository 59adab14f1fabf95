"""The entry of the command line: arguments in, exit status out, every exception accounted for."""

from __future__ import annotations

import os
import sys

from gpudiag.runs.early import start_early

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import NoReturn

    from gpudiag.probe.start import StartedProbes

_COMPLETE_VARIABLE = "_GPUDIAG_COMPLETE"
_PROGRAM = "gpudiag"


def run() -> NoReturn:
    """The console script: run the command line on the process's own arguments, and exit."""
    _open_standard_files()
    started = start_early(sys.argv[1:])  # before the imports that it overlaps with
    import signal

    signal.signal(signal.SIGTERM, _terminate)
    status = main(sys.argv[1:], started)
    try:
        sys.stdout.flush()
    except OSError:
        # What is still buffered would fail once more at exit, with a traceback and a status of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def main(argv: Sequence[str], started: StartedProbes | None = None) -> int:
    """The exit status of one command line; whatever goes wrong becomes a sentence on standard error.

    `started` are probes that `run` started before anything else was loaded.
    """
    try:
        status = _invoke(argv, started)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the one place where everything ends
        return _report(error)
    return status


def _invoke(argv: Sequence[str], started: StartedProbes | None) -> int:
    import click

    from gpudiag.cli.commands import gpudiag

    instruction = os.environ.get(_COMPLETE_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(gpudiag, {}, _PROGRAM, _COMPLETE_VARIABLE, instruction)
    try:
        # Not click's main(): it turns a closed pipe into exit status 1, which is FAIL here.
        with gpudiag.make_context(_PROGRAM, list(argv), obj=started) as context:
            status = gpudiag.invoke(context)
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    if not isinstance(status, int):
        raise TypeError(f"the command gave {status!r} instead of an exit status")
    return int(status)


def _report(error: BaseException) -> int:
    from gpudiag.cli.failures import describe_failure

    if isinstance(error, SystemExit):
        raise error
    failure = describe_failure(error)
    for line in failure.lines:
        print(line, file=sys.stderr)
    return int(failure.status)


def _open_standard_files() -> None:
    """Open what the caller closed (`>&-`), so that no pipe of ours takes the place of standard output."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: `fd`
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w"))


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    from gpudiag.cli.failures import TerminatedError

    raise TerminatedError
