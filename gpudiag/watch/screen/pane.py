"""A part of the screen: lines as they are, a heading that stays, a cursor that stays on its row.

Only lines that changed are drawn.
"""

from itertools import zip_longest
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gpudiag.render.style import cells_of
from gpudiag.watch.view import (
    ACCENT,
    BOLD,
    DIM,
    FAIL,
    GOOD,
    HEADING,
    PLAIN,
    WARN,
    Line,
    Row,
    Table,
    text_of,
)

# The terminal's own eight colours: they fit its background, cost few bytes over ssh, and are left out under
# NO_COLOR.
STYLES = {
    PLAIN: Style(),
    DIM: Style(dim=True),
    BOLD: Style(bold=True),
    HEADING: Style(bold=True, underline=True),
    ACCENT: Style(color="cyan", bold=True),
    GOOD: Style(color="green"),
    WARN: Style(color="yellow", bold=True),
    FAIL: Style(color="red", bold=True),
}
_CURSOR = Style(reverse=True)
_WHEEL_LINES = 3


def strip_of(line: Line, width: int, *, is_marked: bool = False) -> Strip:
    """A line as Textual draws it, in exactly that width."""
    mark = _CURSOR if is_marked else None
    strip = Strip(
        Segment(span.text, STYLES[span.role] if mark is None else STYLES[span.role] + mark) for span in line
    )
    return strip.adjust_cell_length(width, mark)


def changed_cells(before: Line, after: Line, width: int) -> tuple[int, int]:
    """The first cell that differs, and how many from there on.

    Over ssh, a line of which one number moves is not sent whole.
    """
    if before == after:
        return 0, 0
    cells = [[(letter, span.role) for span in line for letter in span.text] for line in (before, after)]
    texts = (text_of(before), text_of(after))
    if len(cells[0]) != len(cells[1]) or any(cells_of(text) != len(text) for text in texts):
        return 0, width
    differ = [place for place, (one, other) in enumerate(zip(*cells, strict=True)) if one != other]
    return (differ[0], differ[-1] - differ[0] + 1) if differ else (0, 0)


class Lines(Widget):
    """Lines without a cursor: the header and the footer."""

    def __init__(self, name: str) -> None:
        """Show nothing yet."""
        super().__init__(id=name)
        self.shown: tuple[Line, ...] = ()

    def show(self, lines: tuple[Line, ...]) -> None:
        """Draw these, as far as they are others than before."""
        before, self.shown = self.shown, lines
        for place, (old, new) in enumerate(zip_longest(before, lines, fillvalue=())):
            first, count = changed_cells(old, new, self.size.width)
            if count:
                self.refresh(Region(first, place, count, 1))

    def render_line(self, y: int) -> Strip:
        """One line of the widget."""
        width = self.size.width
        return strip_of(self.shown[y], width) if y < len(self.shown) else Strip.blank(width)


class Pane(Widget, can_focus=True):
    """A table with a cursor, which the keys move while it has the focus, and the mouse always."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Chosen(Message):
        """Enter, or a second click, on a row."""

        def __init__(self, pane: "Pane", key: str) -> None:
            """The row's key."""
            super().__init__()
            self.pane, self.key = pane, key

    class Moved(Message):
        """The cursor stands on another row."""

        def __init__(self, pane: "Pane") -> None:
            """The pane, which has the row's key."""
            super().__init__()
            self.pane = pane

    class Headed(Message):
        """A click on a heading that sorts."""

        def __init__(self, sort: str) -> None:
            """The order."""
            super().__init__()
            self.sort = sort

    def __init__(self, name: str) -> None:
        """Show nothing yet."""
        super().__init__(id=name)
        self.table = Table((), ())
        self.key: str | None = None  # of the row under the cursor
        self._lines: tuple[tuple[Line, str], ...] = ()  # each line with its row's key
        self._top = 0  # the first line below the heading
        self._drawn: tuple[tuple[Line, bool], ...] = ()

    @property
    def wanted_lines(self) -> int:
        """The heading and all rows."""
        return 1 + len(self._lines)

    def show(self, table: Table) -> None:
        """Draw the table, as far as it is another than before; the cursor stays on its row."""
        self.table = table
        self._lines = tuple((line, row.key) for row in table.rows for line in row.lines)
        keys = [row.key for row in table.rows]
        if self.key not in keys:
            self.key = keys[0] if keys else None
        self.draw()

    def draw(self) -> None:
        """Draw the lines that have changed since the last time, by text, cursor or place."""
        self._top = max(0, min(self._top, len(self._lines) - self._room))
        wanted = tuple(self._at(y) for y in range(self.size.height))
        before, self._drawn = self._drawn, wanted
        for y, (line, is_marked) in enumerate(wanted):
            first, count = 0, self.size.width
            if y < len(before) and before[y][1] == is_marked:
                first, count = changed_cells(before[y][0], line, self.size.width)
            if count:
                self.refresh(Region(first, y, count, 1))

    @property
    def _room(self) -> int:
        return max(0, self.size.height - 1)

    def _at(self, y: int) -> tuple[Line, bool]:
        if y == 0:
            return self.table.heading, False
        place = self._top + y - 1
        if place >= len(self._lines):
            return (), False
        line, key = self._lines[place]
        return line, self.has_focus and key == self.key

    def render_line(self, y: int) -> Strip:
        """One line of the widget."""
        line, is_marked = self._at(y)
        return strip_of(line, self.size.width, is_marked=is_marked)

    def _row(self) -> int:
        keys = [row.key for row in self.table.rows]
        return keys.index(self.key) if self.key in keys else 0

    def action_move(self, rows: int) -> None:
        """Move the cursor by so many rows."""
        if self.table.rows:
            place = min(len(self.table.rows) - 1, max(0, self._row() + rows))
            self._stand_on(self.table.rows[place])

    def action_page(self, pages: int) -> None:
        """Move the cursor by so many pages."""
        self.action_move(pages * max(1, self._room - 1))

    def action_choose(self) -> None:
        """Report the row under the cursor."""
        if self.key is not None:
            self.post_message(self.Chosen(self, self.key))

    def _stand_on(self, row: Row) -> None:
        if self.key != row.key:
            self.key = row.key
            self.post_message(self.Moved(self))
        places = [place for place, (_, key) in enumerate(self._lines) if key == row.key]
        if places:
            if places[-1] >= self._top + self._room:
                self._top = places[-1] - self._room + 1
            self._top = min(self._top, places[0])
        self.draw()

    def on_resize(self, _event: events.Resize) -> None:
        """Keep the cursor in sight."""
        self._drawn = ()
        if self.table.rows:
            self._stand_on(self.table.rows[self._row()])

    def on_focus(self) -> None:
        """Show the cursor."""
        self.draw()

    def on_blur(self) -> None:
        """Hide the cursor."""
        self.draw()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll, without moving the cursor."""
        event.stop()
        self._top += _WHEEL_LINES
        self.draw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll, without moving the cursor."""
        event.stop()
        self._top -= _WHEEL_LINES
        self.draw()

    def on_click(self, event: events.Click) -> None:
        """Stand on the row; a second click chooses it; one on a heading sorts."""
        if event.y == 0:
            for place in self.table.places:
                if place.first <= event.x < place.last:
                    self.post_message(self.Headed(place.sort))
            return
        at = self._top + event.y - 1
        if at >= len(self._lines):
            return
        key = self._lines[at][1]
        if key == self.key and event.chain > 1:
            self.action_choose()
        self._stand_on(next(row for row in self.table.rows if row.key == key))
