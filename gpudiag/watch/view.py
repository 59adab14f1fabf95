"""The picture as plain data: lines of spans in tables.

`compose` makes it of readings, `screen` draws it, and tests read it as text.
"""

from dataclasses import dataclass

# How a span is drawn; the terminal's own colours, or none, are the screen's matter.
PLAIN, DIM, BOLD, HEADING, ACCENT = "", "dim", "bold", "heading", "accent"
GOOD, WARN, FAIL = "good", "warn", "fail"
ROLES = (PLAIN, DIM, BOLD, HEADING, ACCENT, GOOD, WARN, FAIL)
ROLE_OF_OUTCOME = {"pass": GOOD, "ok": GOOD, "warn": WARN, "fail": FAIL, "error": FAIL}


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line that is drawn alike."""

    text: str
    role: str = PLAIN


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Something that the cursor can stand on; `key` is the same in the next picture."""

    key: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a column of a table is, for the mouse.

    `sort` is the order that a click on its heading chooses.
    """

    first: int
    last: int
    sort: str


@dataclass(frozen=True, slots=True)
class Table:
    """A part of the picture that scrolls by itself, under a heading that stays."""

    heading: Line
    rows: tuple[Row, ...]
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """All that is drawn at one moment; `hosts` is None where one machine is watched."""

    header: tuple[Line, ...]
    hosts: Table | None
    gpus: Table
    findings: Table
    processes: Table
    footer: Line


def text_of(line: Line) -> str:
    """A line as it is read, without its roles."""
    return "".join(span.text for span in line)
