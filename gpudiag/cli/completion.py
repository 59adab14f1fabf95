"""What a shell offers for the value of an option or argument: words, names in a list, machines, topics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from gpudiag.model.option import require_known

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class Word(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.3 on
    """One of several words; another is refused with the nearest one."""

    name = "word"

    def __init__(
        self, choices: Sequence[str], what: str, extras: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Allow `choices`; `what` is one of them, with its article: `a format`.

        `extras` may follow a comma.
        """
        self.choices = tuple(choices)
        self._what = what
        self._extras = extras or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word, with what follows it. Raises UsageError: it is none of them."""
        first, *more = (part.strip() for part in str(value).split(","))
        require_known(first if first in self._extras else str(value), self.choices, self._what)
        for part in more if first in self._extras else ():
            require_known(part, self._extras[first], f"an extra of {first}")
        return ",".join((first, *more)) if first in self._extras else str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The words that begin so."""
        return _beginning(self.choices, incomplete)


def offer(words: Iterable[str]) -> Completer:
    """A completer for one of these words."""
    known = tuple(words)
    return lambda _context, _parameter, incomplete: _beginning(known, incomplete)


def offer_list(words: Iterable[str]) -> Completer:
    """A completer for a list of these words with commas, which goes on after the last comma."""
    known = tuple(words)
    return lambda _context, _parameter, incomplete: _next_in_list(known, incomplete, ",")


def offer_checks(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of checks, and their topics, in a list with commas."""
    from gpudiag.checks import BUILTIN

    topics = dict.fromkeys(check.name.partition(".")[0] for check in BUILTIN)
    return _next_in_list((*topics, *(check.name for check in BUILTIN)), incomplete, ",")


def offer_machines(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Machines and stories of `simulate`; after a plus sign, faults. A file may stand there too."""
    from gpudiag.simulate.faults.table import FAULTS
    from gpudiag.simulate.machine_file import base_machines, stories

    if "+" in incomplete:
        return _next_in_list((kind.usage.partition(":")[0] for kind in FAULTS), incomplete, "+")
    if "/" in incomplete or incomplete.startswith("."):
        return [CompletionItem(incomplete, type="file")]
    return _beginning(sorted((*base_machines(), *stories())), incomplete)


def offer_stories(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Stories that come with gpudiag; a file may stand there too."""
    from gpudiag.simulate.machine_file import stories

    return [*_beginning(stories(), incomplete), CompletionItem(incomplete, type="file")]


def offer_machine_lists(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """How `--hub` finds machines; after `@` a file."""
    if incomplete.startswith("@"):
        folder, slash, _ = incomplete[1:].rpartition("/")
        with contextlib.suppress(OSError):
            found = sorted(path.name for path in Path(folder or "/" if slash else ".").expanduser().iterdir())
            return _beginning([f"@{folder}{slash}{name}" for name in found], incomplete)
        return []
    return _beginning(("@", "dns:", "slurm"), incomplete)


def offer_fields(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Fields of `list --query`, in a list with commas."""
    from gpudiag.reference.query_fields import FIELDS, OF_MACHINE

    return _next_in_list((*OF_MACHINE, *FIELDS), incomplete, ",")


def offer_topics(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Codes of findings, where one begins so; else files."""
    from gpudiag.checks.catalogue import finding_kinds

    codes = _beginning(sorted(kind.code for kind in finding_kinds()), incomplete) if incomplete else []
    return codes or [CompletionItem(incomplete, type="file")]


def offer_report(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """`FORMAT=` of a report; after it files."""
    from gpudiag.render.report_formats import REPORT_FORMATS

    if "=" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    return _beginning([f"{name}=" for name in REPORT_FORMATS], incomplete)


def _beginning(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _next_in_list(words: Iterable[str], incomplete: str, separator: str) -> list[CompletionItem]:
    before, mark, last = incomplete.rpartition(separator)
    named = before.split(separator)
    return [
        CompletionItem(f"{before}{mark}{word}")
        for word in words
        if word.startswith(last) and (separator == "+" or word not in named)
    ]
