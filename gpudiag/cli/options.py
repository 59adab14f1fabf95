"""Options that several commands share, each defined once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from gpudiag.cli.failures import nearest, parameter_name
from gpudiag.errors import UsageError

_LOCAL_RANK_FLAG = "gpudiag.local_rank_flag"  # in the meta of a context, which nested ones share
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Seconds(click.ParamType):  # type: ignore[type-arg]  # as completion.Word
    """A time in seconds, as `90`, `90s` or `5m`; its limits are the plan's."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds. Raises UsageError: not a time."""
        return _seconds(value, param)


class SecondsRange(click.FloatRange):
    """A time in seconds within its limits."""

    def __init__(self, least: float, most: float) -> None:
        """Both limits count: no clock takes each number."""
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds. Raises UsageError: outside the limits, or not a time."""
        seconds = _seconds(value, param)
        _require_within(self, seconds, param)
        return seconds

    def _describe_range(self) -> str:
        """The limits as `--help` shows them."""
        return _limits(self)


class WholeRange(click.IntRange):
    """A whole number within its limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises UsageError: outside the limits; BadParameter: not a whole number."""
        number = int(click.INT.convert(value, param, ctx))
        _require_within(self, number, param)
        return number

    def _describe_range(self) -> str:
        """The limits as `--help` shows them."""
        return _limits(self)


def _seconds(value: Any, parameter: click.Parameter | None) -> float:
    from gpudiag.units import parse_seconds  # `gpudiag --help` loads neither

    try:
        return parse_seconds(str(value))
    except UsageError as error:
        name = "" if parameter is None else f"{parameter_name(parameter)}: "
        raise UsageError(f"{name}{error.message}", hint=error.hint) from None


def _require_within(
    limits: click.IntRange | click.FloatRange, number: float, parameter: click.Parameter | None
) -> None:
    """Check the limits. Raises UsageError, in the words of `model.option.require_between`."""
    least, most = limits.min, limits.max
    if (least is None or number >= least) and (most is None or number <= most):
        return
    name = "" if parameter is None else f"{parameter_name(parameter)} "
    raise UsageError(f"{name}{number:.12g} is out of range", hint=_limits(limits))


def _limits(limits: click.IntRange | click.FloatRange) -> str:
    return f"{limits.min:g} or more" if limits.max is None else f"{limits.min:g} to {limits.max:.12g}"


def local_rank_option(*, hidden: bool = True) -> Callable[[_Command], _Command]:
    """`--local-rank N`, as torch.distributed.launch and deepspeed give it; LOCAL_RANK wins."""
    return click.option(
        "--local-rank",
        "--local_rank",
        "local_rank",
        type=WholeRange(0),
        metavar="N",
        hidden=hidden,
        expose_value=False,
        callback=lambda context, parameter, number: _keep_local_rank(context, number),
        help="The local rank as some launchers pass it; LOCAL_RANK takes precedence.",
    )


def _keep_local_rank(context: click.Context, number: int | None) -> None:
    """Put the launcher's local rank where ranks look for it, and keep the flag for a user's script."""
    if number is not None:
        os.environ.setdefault("LOCAL_RANK", str(number))
        # click does not report which of the two was used: torch writes one, deepspeed the other.
        underscored = any(word.startswith("--local_rank") for word in sys.argv)
        context.meta[_LOCAL_RANK_FLAG] = f"--local{'_' if underscored else '-'}rank={number}"


def local_rank_flag(context: click.Context) -> tuple[str, ...]:
    """The launcher's flag for the local rank, as it was written; empty where there was none."""
    flag = context.meta.get(_LOCAL_RANK_FLAG)
    return () if flag is None else (flag,)


def store_option(command: _Command) -> _Command:
    """`--store URL`: where earlier runs are remembered; refused before any work where it is no database."""
    return click.option(
        "--store",
        callback=_store,
        metavar="URL",
        help="Where the history is: a file, sqlite:// or postgresql://.  [default: in the state folder]",
    )(command)


def deadline_option(
    default_seconds: float | None, more: str = "", *, default: str = ""
) -> Callable[[_Command], _Command]:
    """`--deadline SECONDS`: the longest wait; `more`: what the command adds, `default`: if not given."""
    # `gpudiag --help` loads no model.
    from gpudiag.model.option import (
        MAX_DEADLINE_SECONDS,
        MIN_DEADLINE_SECONDS,
    )

    return click.option(
        "--deadline",
        type=SecondsRange(MIN_DEADLINE_SECONDS, MAX_DEADLINE_SECONDS),
        default=default_seconds,
        metavar="SECONDS",
        help=f"Longest wait for an answer{more}.  [default: {default or format(default_seconds, 'g')}]",
    )


def parse_names(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names in a comma-separated list, each once; `all`: every known one.

    Raises:
        UsageError: a name that is not known, or no name at all.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError(f"{option} names nothing", hint=f"choose from {', '.join(known)}, all")
    for name in names:
        if name not in (*known, "all"):
            near = nearest(name, (*known, "all"))
            raise UsageError(
                f"{option}: there is no {name!r}{near}", hint=f"choose from {', '.join(known)}, all"
            )
    return known if "all" in names else names


def _store(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """The URL given, proved to name a database that can keep a history; None where none was given."""
    if url is not None and "://" in url and not context.resilient_parsing:  # any path will do
        from gpudiag.store.database import parse_store_url  # slow to load

        parse_store_url(url)
    return url


def is_given(name: str) -> bool:
    """Whether the command line has that parameter of the running command."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_given(is_wrong: Callable[[str], bool], why: str, hint: str = "leave one of them out") -> None:
    """Raise UsageError for the first flag on the command line that does not belong beside the others."""
    for parameter in click.get_current_context().command.params:
        name = parameter.name or ""
        if is_wrong(name) and is_given(name):
            raise UsageError(f"{parameter.opts[0]} {why}", hint=hint)
