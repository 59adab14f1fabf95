"""Options that several commands share, each defined once."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpudiag.cli.failures import nearest
from gpudiag.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_LOCAL_RANK_FLAG = "gpudiag.local_rank_flag"  # in the meta of a context, which nested ones share
_Command = TypeVar("_Command", bound=Callable[..., Any])


class SecondsRange(click.FloatRange):
    """A number of seconds within its limits; `nan`, which passes every comparison, is refused."""

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
        return f"at least {self.min:g}" if self.max is None else f"{self.min:g} to {self.max:g}"


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
        help="As launchers give it; LOCAL_RANK wins.",
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


def json_option(command: _Command) -> _Command:
    """`--json`: one JSON document on standard output and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")(
        command
    )


def output_option(command: _Command) -> _Command:
    """`--output FILE`: the JSON document in a file too; checked before any work starts."""
    return click.option(
        "--output",
        type=click.Path(),
        callback=_writable,
        metavar="FILE",
        help="Write the JSON document to FILE too.",
    )(command)


def parse_names(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names in a comma-separated list, each once; `all` means every known one.

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


def _writable(context: click.Context, parameter: click.Parameter, name: str | None) -> Path | None:
    """The path given, proved writable; None where none was given."""
    if name is None:
        return None
    from pathlib import Path

    from gpudiag.runs.output import require_writable

    path = Path(name)
    if not context.resilient_parsing:  # a shell completes the line: nothing runs
        require_writable(path)
    return path
