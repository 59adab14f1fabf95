"""The entry of the command line: arguments in, exit status out, every exception accounted for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TextIO

from gpudiag.cli.fast_path import leave_at_once, list_unparsed, load_without_collecting, start_early
from gpudiag.cli.signals import INTERRUPTED, TERMINATED, TerminatedError, end_quietly
from gpudiag.cli.streams import guard_standard_streams

if TYPE_CHECKING:
    import click

    from gpudiag.probe.start import StartedProbes

_COMPLETE_VARIABLE = "_GPUDIAG_COMPLETE"
_PROGRAM = "gpudiag"
_RANK_COMMANDS = ("nccl-test", "train")


def run() -> NoReturn:
    """Run the command line on the process's own arguments, and exit: the console script."""
    _note_termination_of_rank(sys.argv[1:])
    end_quietly()
    load_without_collecting()
    _open_standard_files()
    guard_standard_streams()
    started = None
    try:
        try:
            # Before the imports that it overlaps with; a shell that completes words asks no GPU.
            if _COMPLETE_VARIABLE not in os.environ:
                started = start_early(sys.argv[1:])
            status = main(sys.argv[1:], started)
        except Exception as error:  # noqa: BLE001 - no probe could be started
            status = _report(error)
        finally:
            end_quietly(is_over=True)
    except KeyboardInterrupt:  # a second one, while the first was being reported
        status = INTERRUPTED
    except TerminatedError:
        status = TERMINATED
    except SystemExit as end:  # a signal ended the run, which gives the status
        status = end.code if isinstance(end.code, int) else INTERRUPTED
    _flush()
    if started is not None:
        leave_at_once(status)
    sys.exit(status)


def main(argv: Sequence[str], started: StartedProbes | None = None) -> int:
    """The exit status of one command line, errors as one sentence; `started`: probes that `run` started."""
    try:
        status = _invoke(argv, started)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the one place where everything ends
        return _report(error)
    return status


def _invoke(argv: Sequence[str], started: StartedProbes | None) -> int:
    """The exit status of the command that the arguments name; its exceptions pass through."""
    if _COMPLETE_VARIABLE in os.environ:
        return _complete(os.environ[_COMPLETE_VARIABLE])
    status = list_unparsed(argv, started)
    return _invoke_parsed(argv, started) if status is None else status


def _invoke_parsed(argv: Sequence[str], started: StartedProbes | None) -> int:
    import click

    from gpudiag.cli.commands import gpudiag

    try:
        # Not click's main(): it turns a closed pipe into exit status 1, which is FAIL here.
        with gpudiag.make_context(_PROGRAM, list(argv), obj=started) as context:
            status = gpudiag.invoke(context)
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except click.UsageError as error:
        if error.ctx is None:  # click's parser does not name the option's command
            error.ctx = _context_of(argv)
        raise
    if not isinstance(status, int):
        raise TypeError(f"the command gave {status!r} instead of an exit status")
    return int(status)


def _context_of(argv: Sequence[str]) -> click.Context:
    """The context of the command that the arguments name, for the words of a usage error."""
    import click

    from gpudiag.cli.commands import COMMANDS, gpudiag

    name = next((word for word in argv if word in COMMANDS), "")
    return click.Context(gpudiag, info_name=f"{_PROGRAM} {name}".rstrip())


def _complete(instruction: str) -> int:
    """Write what a shell asks for when it completes a command line."""
    from click.shell_completion import shell_complete

    from gpudiag.cli.commands import gpudiag

    return shell_complete(gpudiag, {}, _PROGRAM, _COMPLETE_VARIABLE, instruction)


def _report(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        raise error
    try:
        from gpudiag.cli.failures import describe_failure

        failure = describe_failure(error)
    except (MemoryError, ImportError):  # where even that cannot be loaded
        return _report_no_memory()
    if failure.status in (INTERRUPTED, TERMINATED) and not _is_read(sys.stderr):
        return int(failure.status)  # a stopped terminal, a full pipe: an interrupt ends us all the same
    try:
        for line in failure.terminal_lines() if sys.stderr.isatty() else failure.lines:
            print(line, file=sys.stderr)
    except OSError:  # the terminal was closed: only the status can be reported
        pass
    return int(failure.status)


def _is_read(stream: TextIO) -> bool:
    """Whether a line can be written to it without waiting for its reader."""
    import select

    try:
        poll = select.poll()
        poll.register(stream, select.POLLOUT)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # it is no file: a test took its place
        return True


def _report_no_memory() -> int:
    """Write one sentence with what is loaded already; the exit status is that of ERROR."""
    with suppress(OSError):
        os.write(2, b"gpudiag: gpudiag gets no memory for itself, see `ulimit -v` and `free -m`\n")
    return 3  # ExitStatus.ERROR


def _flush() -> None:
    """Write out what is buffered; where that fails, keep it from failing again at exit.

    The second failure would bring a traceback and an exit status of its own.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_standard_files() -> None:
    """Open what the caller closed (`>&-`), so that no pipe of ours takes the place of standard output."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: `fd`
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w"))


def _note_termination_of_rank(argv: Sequence[str]) -> None:
    """Have a rank of a launch only note SIGTERM: torchrun sends it to the others when one has died.

    They must still report that.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and argv and argv[0] in _RANK_COMMANDS:
        from gpudiag.ranks.agents.interrupts import note_termination

        note_termination()
