"""The entry of the command line: arguments in, exit status out, every exception accounted for."""

import os
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from gpudiag.errors import ExitStatus

_COMPLETE_VARIABLE = "_GPUDIAG_COMPLETE"
_PROGRAM = "gpudiag"


def run() -> NoReturn:
    """The console script: run the command line on the process's own arguments, and exit."""
    import signal

    signal.signal(signal.SIGTERM, _terminate)
    status = main(sys.argv[1:])
    if status == ExitStatus.PIPE_CLOSED:
        # What is still buffered would fail once more at exit, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def main(argv: Sequence[str]) -> int:
    """The exit status of one command line; whatever goes wrong becomes a sentence on standard error."""
    try:
        status = _invoke(argv)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the one place where everything ends
        return _report(error)
    return status


def _invoke(argv: Sequence[str]) -> int:
    import click

    from gpudiag.cli.commands import gpudiag

    instruction = os.environ.get(_COMPLETE_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(gpudiag, {}, _PROGRAM, _COMPLETE_VARIABLE, instruction)
    try:
        # Not click's main(): it turns a closed pipe into exit status 1, which is FAIL here.
        with gpudiag.make_context(_PROGRAM, list(argv)) as context:
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


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    from gpudiag.cli.failures import TerminatedError

    raise TerminatedError
