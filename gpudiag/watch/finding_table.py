"""The findings in place: what is wrong with which part, how it is known, and what to do."""

from collections.abc import Sequence

from gpudiag.model.finding import Finding
from gpudiag.model.untrusted_text import escape_controls
from gpudiag.render.style import cells_of, wrapped
from gpudiag.render.told_once import Told, tell_once
from gpudiag.watch.columns import cut
from gpudiag.watch.glyphs import Glyphs
from gpudiag.watch.view import DIM, HEADING, PLAIN, ROLE_OF_OUTCOME, Line, Row, Span, Table

_INDENT = "     "


def finding_table(findings: Sequence[Finding], verdict: str | None, width: int, glyphs: Glyphs) -> Table:
    """Each finding once, with the GPUs that share it: its sentence, its facts, its remedy."""
    told = tell_once(findings)
    count = str(len(told)) if told else "not judged yet" if verdict is None else "none"
    rows = tuple(Row(key_of_told(one), _lines(one, width, glyphs)) for one in told)
    return Table(cut((Span(f"FINDINGS {count}", HEADING),), width), rows)


def key_of_told(told: Told) -> str:
    """What stays the same from one picture to the next."""
    return f"{told.finding.code}/{told.subject}"


def find_told(findings: Sequence[Finding], key: str) -> Told | None:
    """The finding of that key; None where it has gone since."""
    return next((told for told in tell_once(findings) if key_of_told(told) == key), None)


def _lines(told: Told, width: int, glyphs: Glyphs) -> tuple[Line, ...]:
    outcome = told.finding.outcome.value
    word = f"{outcome.upper():5}"
    role = ROLE_OF_OUTCOME.get(outcome, PLAIN)
    message = told.message if told.subject in told.message else f"{told.subject}: {told.message}"
    texts = _wrapped(f"{message}  [{told.finding.code}]", width - len(word))
    lines = [(Span(word if number == 0 else _INDENT, role), Span(text)) for number, text in enumerate(texts)]
    for fact in told.facts:
        lines += [(Span(_INDENT), Span(text, DIM)) for text in _wrapped(f"- {fact}", width - len(_INDENT))]
    arrow = f"{_INDENT}{glyphs.arrow} "
    remedy = _wrapped(told.remedy, width - cells_of(arrow))
    lines += [
        (Span(arrow if number == 0 else " " * cells_of(arrow)), Span(text, role)) for number, text in enumerate(remedy)
    ]
    return tuple(cut(line, width) for line in lines)


def _wrapped(text: str, width: int) -> list[str]:
    return wrapped(escape_controls(text), width=max(10, width)) or [""]
