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
    from gpudiag.model.finding import JoinedFinding

_INDENT = "     "


# What stands there where there is no finding, by the verdict.
_NONE = {
    None: "not judged yet",
    "error": "none; something could not be read: `gpudiag preflight --level instant` names it",
}
_ROOM_FOR_ALL = 10  # lines: where all findings take no more, each is whole


def finding_table(
    findings: Sequence[Finding], verdict: str | None, chosen: str | None, width: int, glyphs: Glyphs
) -> Table:
    """Each finding once, with the GPUs that share it: its sentence, its remedy, its facts.

    Where they are many, the chosen one is whole, else the first, and of the others there is one line.
    """
    joined = _joined(findings)
    whole = {key_of_finding(one): _lines(one, width, glyphs) for one in joined}
    if chosen not in whole:
        chosen = next(iter(whole), None)
    if sum(map(len, whole.values())) > _ROOM_FOR_ALL:
        whole = {
            key_of_finding(one): whole[chosen] if key_of_finding(one) == chosen else _first_line(one, width)
            for one in joined
        }
    count = str(len(joined)) if joined else _NONE.get(verdict, "none")
    rows = tuple(Row(key, lines) for key, lines in whole.items())
    return Table(cut((Span(f"FINDINGS {count}", HEADING),), width), rows)


def _joined(findings: Sequence[Finding]) -> tuple[JoinedFinding, ...]:
    if not findings:
        return ()
    # With the checks behind it: late, for a quick start.
    from gpudiag.render.joined_findings import (
        join_findings,
    )

    return join_findings(findings)


def key_of_finding(joined: JoinedFinding) -> str:
    """What stays the same from one picture to the next."""
    return f"{joined.finding.code}/{joined.subject}"


def find_joined(findings: Sequence[Finding], key: str) -> JoinedFinding | None:
    """The finding of that key; None where it has gone since."""
    return next((joined for joined in _joined(findings) if key_of_finding(joined) == key), None)


def _words_of(joined: JoinedFinding) -> str:
    message = joined.message if joined.subject in joined.message else f"{joined.subject}: {joined.message}"
    return f"{message}  [{joined.finding.code}]"


def _word(joined: JoinedFinding) -> Span:
    outcome = joined.finding.outcome.value
    return Span(f"{outcome.upper():{len(_INDENT)}}", ROLE_OF_OUTCOME.get(outcome, PLAIN))


def _first_line(joined: JoinedFinding, width: int) -> tuple[Line, ...]:
    return (cut((_word(joined), Span(fill(_words_of(joined), max(1, width - len(_INDENT))))), width),)


def _lines(joined: JoinedFinding, width: int, glyphs: Glyphs) -> tuple[Line, ...]:
    """The sentence with its code, the remedy, and how it is known."""
    word, room = _word(joined), width - len(_INDENT)
    lines = [
        (word if number == 0 else Span(_INDENT), Span(text))
        for number, text in enumerate(_wrapped(_words_of(joined), room))
    ]
    arrow = f"{glyphs.arrow} "
    blank = " " * cells_of(arrow)
    lines += [
        (Span(_INDENT + (arrow if number == 0 else blank)), Span(text, word.role))
        for number, text in enumerate(_wrapped(joined.remedy, room - cells_of(arrow)))
    ]
    for fact in joined.facts:
        lines += [
            (Span(_INDENT + ("- " if number == 0 else "  ")), Span(text, DIM))
            for number, text in enumerate(_wrapped(fact, room - 2))
        ]
    return tuple(cut(line, width) for line in lines)


def _wrapped(text: str, width: int) -> list[str]:
    return wrapped(escape_controls(text), width=max(10, width)) or [""]
