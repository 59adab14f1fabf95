"""The findings in place: what is wrong with which part, how it is known, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpudiag.model.finding import Finding
from gpudiag.model.untrusted_text import escape_controls
from gpudiag.render.style import cells_of, wrapped
from gpudiag.watch.columns import cut, fill
from gpudiag.watch.glyphs import Glyphs
from gpudiag.watch.view import DIM, HEADING, PLAIN, ROLE_OF_OUTCOME, Line, Row, Span, Table

if TYPE_CHECKING:
    from gpudiag.render.told_once import Told

_INDENT = "     "


# What stands there where there is no finding, by the verdict.
_NONE = {
    None: "not judged yet",
    "error": "none; a check could not look: `gpudiag preflight --level instant` names it",
}
_ROOM_FOR_ALL = 10  # lines: where all findings take no more, each is whole


def finding_table(
    findings: Sequence[Finding], verdict: str | None, chosen: str | None, width: int, glyphs: Glyphs
) -> Table:
    """Each finding once, with the GPUs that share it: its sentence, its remedy, its facts.

    Where they are many, the chosen one is whole, else the first, and of the others there is one line.
    """
    told = _told(findings)
    whole = {key_of_told(one): _lines(one, width, glyphs) for one in told}
    if chosen not in whole:
        chosen = next(iter(whole), None)
    if sum(map(len, whole.values())) > _ROOM_FOR_ALL:
        whole = {
            key_of_told(one): whole[chosen] if key_of_told(one) == chosen else _first_line(one, width)
            for one in told
        }
    count = str(len(told)) if told else _NONE.get(verdict, "none")
    rows = tuple(Row(key, lines) for key, lines in whole.items())
    return Table(cut((Span(f"FINDINGS {count}", HEADING),), width), rows)


def _told(findings: Sequence[Finding]) -> tuple[Told, ...]:
    if not findings:
        return ()
    from gpudiag.render.told_once import (
        tell_once,
    )  # with the checks behind it: the first picture has no finding

    return tell_once(findings)


def key_of_told(told: Told) -> str:
    """What stays the same from one picture to the next."""
    return f"{told.finding.code}/{told.subject}"


def find_told(findings: Sequence[Finding], key: str) -> Told | None:
    """The finding of that key; None where it has gone since."""
    return next((told for told in _told(findings) if key_of_told(told) == key), None)


def _words_of(told: Told) -> str:
    message = told.message if told.subject in told.message else f"{told.subject}: {told.message}"
    return f"{message}  [{told.finding.code}]"


def _word(told: Told) -> Span:
    outcome = told.finding.outcome.value
    return Span(f"{outcome.upper():{len(_INDENT)}}", ROLE_OF_OUTCOME.get(outcome, PLAIN))


def _first_line(told: Told, width: int) -> tuple[Line, ...]:
    return (cut((_word(told), Span(fill(_words_of(told), max(1, width - len(_INDENT))))), width),)


def _lines(told: Told, width: int, glyphs: Glyphs) -> tuple[Line, ...]:
    """The sentence with its code, the remedy, and how it is known."""
    word, room = _word(told), width - len(_INDENT)
    lines = [
        (word if number == 0 else Span(_INDENT), Span(text))
        for number, text in enumerate(_wrapped(_words_of(told), room))
    ]
    arrow = f"{glyphs.arrow} "
    blank = " " * cells_of(arrow)
    lines += [
        (Span(_INDENT + (arrow if number == 0 else blank)), Span(text, word.role))
        for number, text in enumerate(_wrapped(told.remedy, room - cells_of(arrow)))
    ]
    for fact in told.facts:
        lines += [
            (Span(_INDENT + ("- " if number == 0 else "  ")), Span(text, DIM))
            for number, text in enumerate(_wrapped(fact, room - 2))
        ]
    return tuple(cut(line, width) for line in lines)


def _wrapped(text: str, width: int) -> list[str]:
    return wrapped(escape_controls(text), width=max(10, width)) or [""]
