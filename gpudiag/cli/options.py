"""Options that several commands share, each defined once."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from gpudiag.cli.failures import nearest
from gpudiag.errors import UsageError

_LOCAL_RANK_FLAG = "gpudiag.local_rank_flag"  # in the meta of a context, which nested ones share
_Command = TypeVar("_Command", bound=Callable[..., Any])


class SecondsRange(click.FloatRange):
    """A number of seconds within its limits; `nan`, which passes every comparison, is refused."""

    def __init__(self, least: float, most: float) -> None:
        """Both limits count: no clock takes each number."""
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error where it is outside the limits or not a number."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return float(super().convert(seconds, param, ctx))

    def _describe_range(self) -> str:
        """The limits as `--help` and the usage error show them."""
        return f"{self.min:g} to {self.max:g}"


def local_rank_option(*, hidden: bool = True) -> Callable[[_Command], _Command]:
    """`--local-rank N`, as torch.distributed.launch and deepspeed give it; LOCAL_RANK wins."""
    return click.option(
        "--local-rank",
        "--local_rank",
        "local_rank",
        type=int,
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
        help="Where the history is: a file, sqlite:// or postgresql://.  [default: in the state directory]",
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
