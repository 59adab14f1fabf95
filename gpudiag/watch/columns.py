"""Tables whose columns come and go with the width: the most useful stay, and some stretch over the rest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpudiag.model.untrusted_text import escape_controls
from gpudiag.render.style import cells_of, shortened
from gpudiag.watch.view import HEADING, PLAIN, Line, Place, Span

_T = TypeVar("_T")
_GAP = 1


@dataclass(frozen=True, slots=True)
class Column(Generic[_T]):
    """A column: what it shows of a row in its width, and how much it is wanted (1 is always there).

    `most`: how wide it may become; `weight`: its share of what is left over.
    """

    heading: str
    width: int
    rank: int
    cell: Callable[[_T, int], Span]
    is_right: bool = False
    most: int = 0
    weight: int = 0
    sort: str = ""


def fit_columns(columns: Sequence[Column[_T]], width: int) -> tuple[tuple[Column[_T], int], ...]:
    """The columns that fit, in their order, each with its width.

    Those of rank 1 stay and are cut by the screen.
    """
    kept = list(columns)
    while sum(column.width + _GAP for column in kept) - _GAP > width:
        least = max(kept, key=lambda column: column.rank)
        if least.rank == 1:
            break
        kept.remove(least)
    spare = max(0, width - sum(column.width + _GAP for column in kept) + _GAP)
    widths = [column.width for column in kept]
    stretching = [place for place, column in enumerate(kept) if column.weight]
    while spare and stretching:
        total = sum(kept[place].weight for place in stretching)
        before = spare
        for place in tuple(stretching):
            more = min(spare, max(1, before * kept[place].weight // total), kept[place].most - widths[place])
            widths[place] += more
            spare -= more
            if widths[place] >= kept[place].most:
                stretching.remove(place)
    return tuple(zip(kept, widths, strict=True))


def heading_line(
    columns: Sequence[tuple[Column[_T], int]], sort: str = "", *, is_reversed: bool = False
) -> tuple[Line, tuple[Place, ...]]:
    """The line of headings, with a mark at the column that sorts; and where each column is."""
    spans, places, at = [], [], 0
    for column, width in columns:
        text = column.heading
        if sort and column.sort == sort:
            text = f"{text}{'^' if is_reversed else 'v'}"
        spans.append(Span(fill(text, width, is_right=column.is_right) + " " * _GAP, HEADING))
        places.append(Place(at, at + width, column.sort))
        at += width + _GAP
    return tuple(spans), tuple(place for place in places if place.sort)


def row_line(columns: Sequence[tuple[Column[_T], int]], row: _T) -> Line:
    """The line of one row."""
    spans: list[Span] = []
    for column, width in columns:
        cell = column.cell(row, width)
        spans += [Span(fill(cell.text, width, is_right=column.is_right), cell.role), Span(" " * _GAP)]
    return tuple(spans)


def fill(text: str, width: int, *, is_right: bool = False) -> str:
    """The text in exactly `width` cells: cut, or padded; what would steer a terminal is written out."""
    shown = shortened(escape_controls(text), width) if width > 1 else escape_controls(text)[:width]
    spaces = " " * (width - cells_of(shown))
    return f"{spaces}{shown}" if is_right else f"{shown}{spaces}"


def spread(left: Sequence[Span], right: Sequence[Span], width: int) -> Line:
    """One line with spans at both ends; the right ones are left out where there is no room for them."""
    cleaned = [Span(escape_controls(span.text), span.role) for span in left]
    ends = [Span(escape_controls(span.text), span.role) for span in right]
    used = sum(cells_of(span.text) for span in cleaned)
    wanted = sum(cells_of(span.text) for span in ends)
    if used + wanted + 1 > width:
        return cut(cleaned, width)
    return (*cleaned, Span(" " * (width - used - wanted), PLAIN), *ends)


def cut(spans: Sequence[Span], width: int) -> Line:
    """The spans in at most `width` cells, padded to it."""
    kept: list[Span] = []
    left = width
    for span in spans:
        size = cells_of(span.text)
        if size > left:
            kept.append(Span(fill(span.text, left), span.role))
            left = 0
            break
        kept.append(span)
        left -= size
    return (*kept, Span(" " * left)) if left else tuple(kept)
