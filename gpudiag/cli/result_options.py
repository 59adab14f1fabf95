"""How a result is asked for, alike in all commands: `--format`, `--json`, `--output`, `--verbose`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from gpudiag.cli.completion import Word
from gpudiag.errors import UsageError

if TYPE_CHECKING:
    from gpudiag.render.style import Style

_Command = TypeVar("_Command", bound=Callable[..., Any])

STANDARD_OUTPUT = Path("-")
TEXT, JSON = "text", "json"
PLAIN_FORMATS = (TEXT, JSON)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The format of standard output, the file for the document, and whether text has everything."""

    form: str = TEXT
    output: Path | None = None
    verbose: bool = False

    @property
    def as_json(self) -> bool:
        """Whether standard output gets the document."""
        return self.form == JSON

    def style(self) -> Style:
        """How text is written on standard output."""
        from gpudiag.render.style import Style, wants_colour

        return Style(wants_colour(sys.stdout.isatty(), dict(os.environ)), verbose=self.verbose)


def result_options(
    formats: Sequence[str] = PLAIN_FORMATS,
    *,
    verbose: str = "Print the whole text.",
    extras: Mapping[str, Sequence[str]] | None = None,
) -> Callable[[_Command], _Command]:
    """The four options, as `wanted`; without words for `verbose` none; `extras`: what may follow a format."""

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def asked(*arguments: Any, **options: Any) -> Any:
            return command(*arguments, wanted=read_wanted(options), **options)

        added: Any = asked
        if verbose:
            added = click.option("--verbose", is_flag=True, help=verbose)(added)
        added = click.option(
            "--output",
            type=click.Path(readable=False),
            callback=_writable,
            metavar="FILE",
            help="Write the JSON document to FILE too; - prints it instead.",
        )(added)
        added = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")(added)
        added = click.option(
            "--format",
            "form",
            type=Word(formats, "a format", extras),
            metavar="NAME",
            help=(
                f"What to print: {', '.join(_with_extras(name, extras) for name in formats)}."
                "  [default: text]"
            ),
        )(added)
        return cast("_Command", added)

    return decorate


def _with_extras(name: str, extras: Mapping[str, Sequence[str]] | None) -> str:
    return name + "".join(f"[,{extra}]" for extra in (extras or {}).get(name, ()))


def read_wanted(options: dict[str, Any]) -> Wanted:
    """What the options ask for, taken out of `options`.

    Raises:
        UsageError: they contradict each other, or one of them would do nothing.
    """
    form, as_json, output = options.pop("form"), options.pop("as_json"), options.pop("output")
    verbose = options.pop("verbose", False)
    asked = [(f"--format {form}", form)] if form is not None else []
    asked += [("--json", JSON)] * as_json + [("--output -", JSON)] * (output == STANDARD_OUTPUT)
    if len({name for _, name in asked}) > 1:
        flags = " and ".join(flag for flag, _ in asked)
        raise UsageError(
            f"{flags} contradict each other: both choose what to print",
            hint="--output FILE keeps the document",
        )
    chosen = asked[0][1] if asked else TEXT
    if verbose and chosen != TEXT:
        raise UsageError(
            f"--verbose changes text, and {asked[0][0]} prints none", hint="leave one of the two out"
        )
    if options.get("events") == STANDARD_OUTPUT and chosen != JSON:
        raise UsageError(
            "--events - prints one JSON document per line, and the result would be text among them",
            hint="add --json: the last line is the result",
        )
    return Wanted(chosen, None if output == STANDARD_OUTPUT else output, verbose)


def _writable(context: click.Context, parameter: click.Parameter, name: str | None) -> Path | None:
    """The path given, proved writable; None where none was given."""
    if name is None:
        return None
    path = Path(name)
    if path != STANDARD_OUTPUT and not context.resilient_parsing:  # a shell completes the line: nothing runs
        from gpudiag.runs.output import require_writable

        require_writable(path)
    return path
