"""What ends a command early, as one sentence for the user and one exit status. The only such table.

exception                      status
GpudiagError                   its own `exit_status` (gpudiag/errors.py draws the tree)
click's usage errors           2
ImportError of another package 2: a package is not installed, or not whole
KeyboardInterrupt              130
TerminatedError (SIGTERM)      143
BrokenPipeError                141, without a message: the reader has gone
OSError: disk full and so on   3: the result could not be written
whatever is the sign of a limit 3: no process, thread, memory or file for gpudiag itself (gpudiag/shortage.py)
anything else                  70: our bug, never the user's machine
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpudiag.cli.signals import TerminatedError
from gpudiag.errors import ExitStatus, GpudiagError
from gpudiag.shortage import shortage_of

if TYPE_CHECKING:
    import click

_REFUSED_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_OWN = ("gpudiag", "gpudiag_api")
_IMPORTERS = ("importlib", "_frozen_importlib", "_frozen_importlib_external", "__main__", "")

DEBUG_VARIABLE = "GPUDIAG_DEBUG"
_INDENT = "  "
_OURS_FOR_THEIRS = (
    ("a valid integer", "a whole number"),
    ("a valid float", "a number"),
    ("Got unexpected extra arguments", "too many arguments:"),
    ("Got unexpected extra argument", "too many arguments:"),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """How a command ended early: its exit status, and its lines for standard error, one for each sentence."""

    status: ExitStatus
    sentences: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The sentences, then the traceback."""
        return (*self.sentences, *self.trace)

    def terminal_lines(self) -> tuple[str, ...]:
        """The lines, with sentences wrapped for a terminal; a word longer than a line stays whole."""
        from gpudiag.render.style import wrapped  # late, as traceback below: most commands never fail

        lines = (line for text in self.sentences for line in wrapped(text, indent=_INDENT))
        return (*lines, *self.trace)


def describe_failure(error: BaseException) -> Failure:
    """The exit status and the words for an exception that reached the top of a command."""
    if isinstance(error, GpudiagError):
        return Failure(error.exit_status, _sentences(error.message, error.hint))
    if (shortage := shortage_of(error)) is not None:
        return Failure(shortage.exit_status, _sentences(shortage.message, shortage.hint))
    if isinstance(error, ImportError) and (failure := _describe_import(error)) is not None:
        return failure
    import click  # only now: it may be what is not installed

    if isinstance(error, click.ClickException):
        return _describe_usage(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return Failure(ExitStatus.INTERRUPTED, _sentences("interrupted"))
    if isinstance(error, TerminatedError):
        return Failure(ExitStatus.TERMINATED, _sentences("terminated"))
    if isinstance(error, BrokenPipeError):
        return Failure(ExitStatus.PIPE_CLOSED)
    if isinstance(error, OSError) and error.errno in _REFUSED_WRITES:
        return Failure(ExitStatus.ERROR, _sentences(f"the result could not be written: {error.strerror}"))
    return _describe_bug(error)


def _describe_import(error: ImportError) -> Failure | None:
    """The failure where a package is missing or not whole; None for a part of gpudiag itself."""
    from gpudiag.installed import command_for_module, repair_command

    module = error.name or ""
    top = module.partition(".")[0]
    if not top or top in _OWN:
        return None
    asked = _asked_package(error) or top
    if top in sys.stdlib_module_names:
        words = f"this Python ({sys.executable}) was built without {module}, which {asked} needs"
        return Failure(
            ExitStatus.USAGE, _sentences(words, "use another Python, such as the distribution's own")
        )
    if isinstance(error, ModuleNotFoundError) and module == top:
        words = f"{top} is not installed, and {'gpudiag' if asked == top else asked} needs it"
        return Failure(ExitStatus.USAGE, _sentences(words, command_for_module(top, asked)))
    words = f"{top} is not whole, or of a version that does not fit: {error}"
    return Failure(ExitStatus.USAGE, _sentences(words, repair_command(top, is_there=True)))


def _asked_package(error: ImportError) -> str | None:
    """The package that gpudiag imported last, where a module of it, or of a later one, failed."""
    found, trace = None, error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if name in _OWN:
            found = None
        elif found is None and name not in _IMPORTERS and name not in sys.stdlib_module_names:
            found = name
        trace = trace.tb_next
    return found


def nearest(word: str, known: tuple[str, ...]) -> str:
    """The hint `; did you mean --wide?` with the nearest known word; empty where none is near."""
    from gpudiag.model.nearest import did_you_mean  # late, as traceback below: most commands never fail

    return did_you_mean(word, known, "; ")


def parameter_name(parameter: click.Parameter) -> str:
    """What a message calls it: the option's first flag, or the argument's word in the usage line."""
    return parameter.opts[0] if parameter.param_type_name == "option" else parameter.human_readable_name


def _describe_usage(error: click.ClickException) -> Failure:
    import click

    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "gpudiag"
    hint = f"see `{path} --help`"
    if isinstance(error, click.NoSuchOption):
        known = tuple(option for parameter in _parameters(context) for option in parameter.opts)
        if context is not None and isinstance(context.command, click.Group):
            hint = f"a command comes before its options: gpudiag list --json; {hint}"
        if error.option_name.lstrip("-")[:1].isdigit():
            message = f"{error.option_name} looks like an option: a negative number is no value here"
        else:
            message = f"there is no option {error.option_name}{nearest(error.option_name, known)}"
        return Failure(ExitStatus.USAGE, _sentences(message, hint))
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        return Failure(ExitStatus.USAGE, _sentences(_of_value(error), hint))
    words = _in_our_words(error.format_message())
    if context is not None and not isinstance(context.command, click.Group):
        usage = " ".join((path, *context.command.collect_usage_pieces(context)))
        hint = f"usage: {usage}; {hint}"
    return Failure(ExitStatus.USAGE, _sentences(words, hint))


def _of_value(error: click.BadParameter) -> str:
    """What is wrong with an option's or an argument's value, its name first."""
    words = _in_our_words(error.message)
    return words if error.param is None else f"{parameter_name(error.param)}: {words}"


def _in_our_words(words: str) -> str:
    for theirs, ours in _OURS_FOR_THEIRS:
        words = words.replace(theirs, ours)
    return words[:1].lower() + words[1:].rstrip(".")


def _parameters(context: click.Context | None) -> list[click.Parameter]:
    return [] if context is None else context.command.get_params(context)


def _describe_bug(error: BaseException) -> Failure:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    message = (
        f"internal error, a bug of gpudiag and not of this machine: {type(error).__name__}: {error}{place}"
    )
    if os.environ.get(DEBUG_VARIABLE):
        from gpudiag.model.untrusted_text import mask_text

        trace = mask_text("".join(traceback.format_exception(error)).rstrip()).splitlines()
        return Failure(ExitStatus.INTERNAL, _sentences(message), tuple(trace))
    hint = f"run it again with {DEBUG_VARIABLE}=1 and report the traceback"
    return Failure(ExitStatus.INTERNAL, _sentences(message, hint))


def _sentences(message: str, hint: str = "") -> tuple[str, ...]:
    from gpudiag.model.untrusted_text import mask_text  # late, as traceback above: most commands never fail

    first = f"gpudiag: {mask_text(message)}"
    return (first, f"{_INDENT}{mask_text(hint)}") if hint else (first,)
