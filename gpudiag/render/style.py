"""How text is laid out on a terminal: width, colour where wanted, footnotes, plain tables."""

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from textwrap import wrap

from gpudiag.model.untrusted_text import shorten_text

# The width where there is no terminal; no table fits in less.
_COLUMNS = 80
_MOST_OF_PROSE = 100  # longer lines of text are hard to read; tables take the whole width
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}
_OUTCOME_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red", "error": "red"}
_GAP = " "

# Control, format (bidirectional overrides among them), private and unassigned characters.
_UNSAFE = ("Cc", "Cf", "Co", "Cn")

_FEWEST_COLUMNS, _MOST_COLUMNS = 40, 500


def columns() -> int:
    """The width of what is printed: COLUMNS (POSIX, Environment Variables), else the terminal's, else 80."""
    text = os.environ.get("COLUMNS", "")
    columns = int(text) if text.isdecimal() else 0
    width = columns or _terminal_columns() or _COLUMNS
    return max(_FEWEST_COLUMNS, min(_MOST_COLUMNS, width))


def prose_columns() -> int:
    """The width of sentences: that of what is printed, but no wider than reads well."""
    return min(columns(), _MOST_OF_PROSE)


def _terminal_columns() -> int:
    """The width of the terminal on standard output; 0 if it is no terminal or has no known width."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    except (OSError, ValueError, AttributeError):  # closed, replaced, or unknown
        return 0


@dataclass(frozen=True, slots=True)
class Style:
    """Whether to write colours, and whether to write all that there is (`--verbose`)."""

    colour: bool = False
    verbose: bool = False

    def most(self, count: int) -> int:
        """How many of a list are written: `count`, or all."""
        return sys.maxsize if self.verbose else count

    def paint(self, text: str, colour: str) -> str:
        """`text` in that colour; as it is where colours are off, or where `colour` is empty."""
        if not (self.colour and colour and text):
            return text
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"

    def paint_outcome(self, line: str, outcome: str) -> str:
        """`line` with the first word of that outcome in it (`FAIL`) in the outcome's colour."""
        word = outcome.upper()
        return line.replace(word, self.paint(word, _OUTCOME_COLOURS.get(outcome, "bold")), 1)


PLAIN = Style()


def wants_colour(is_terminal: bool, environment: dict[str, str]) -> bool:
    """Whether output is coloured: NO_COLOR (https://no-color.org) wins, then FORCE_COLOR, then a terminal."""
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return True
    return is_terminal and environment.get("TERM") != "dumb"


@dataclass(slots=True)
class Footnotes:
    """Numbered notes under a table; the same text keeps its number."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """The mark that refers to `text`: `[1]`."""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"

    def lines(self) -> list[str]:
        """The notes, each after its mark, wrapped."""
        numbered = (f"[{number}] {text}" for number, text in enumerate(self.texts, start=1))
        return [line for note in numbered for line in wrapped(note, indent="    ")]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, its alignment, and whether it is cut when a line is too long."""

    heading: str
    right: bool = False
    gives_way: bool = False


def render_table(
    headings: Sequence[Column], rows: Iterable[Sequence[str]], width: int | None = None
) -> list[str]:
    """A table with a heading, at most `width` columns wide; only columns with `gives_way` are cut."""
    cells = [[column.heading for column in headings], *([*row] for row in rows)]
    widths = [max(cells_of(row[place]) for row in cells) for place in range(len(headings))]
    excess = sum(widths) + len(_GAP) * (len(headings) - 1) - (width or columns())
    for place, column in enumerate(headings):
        if column.gives_way and excess > 0:
            narrowest = max(cells_of(column.heading), 4)
            cut = min(excess, max(0, widths[place] - narrowest))
            widths[place] -= cut
            excess -= cut
    return [_render_row(headings, widths, row) for row in cells]


def wrapped(text: str, *, indent: str = "", first: str = "", width: int | None = None) -> list[str]:
    """`text` in lines of at most `width` (else as prose is), the first after `first`, others after `indent`.

    A command in backticks stays on one line where one can hold it, so that it can be copied. Beside a `first`
    that leaves little room the text would be one word a line: it then stands below.
    """
    width = width or prose_columns()
    if width - len(indent) < _LEAST_ROOM < len(indent) and cells_of(first) + cells_of(text) > width:
        return [first.rstrip(), *wrapped(text, indent=_BELOW, first=_BELOW, width=width)]
    room = width - max(len(indent), len(first))
    lines = wrap(
        _COMMAND.sub(lambda command: _held_together(command[0], room), text),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_HELD_SPACE, " ") for line in lines]


_LEAST_ROOM = 20  # columns for text beside its heading
_BELOW = "    "

# A command with the punctuation that touches it.
_COMMAND = re.compile(r"\S*`[^`\n]+`\S*")
_HELD_SPACE = "\0"  # no text has it: `one_line` and `safe_lines` take it out


def _held_together(command: str, room: int) -> str:
    return command.replace(" ", _HELD_SPACE) if len(command) <= room else command


def next_lines(*commands: str, width: int | None = None) -> list[str]:
    """`Next: A | B`, broken between commands only, so that each can be copied whole."""
    lines = [f"Next: {commands[0]}"]
    for command in commands[1:]:
        if len(f"{lines[-1]} | {command}") <= (width or columns()):
            lines[-1] += f" | {command}"
        else:
            lines[-1] += " |"
            lines.append(f"      {command}")
    return lines


# Characters other than ASCII, arrows, mathematical signs, box drawing and blocks (U+2190 to U+2319, U+2500 to
# U+259F), which take one cell each.
_NOT_ONE_CELL = re.compile("[^\x00-\x7f\u2190-\u2319\u2500-\u259f]")


def cells_of(text: str) -> int:
    """A text's columns on a terminal: two for a wide character, none for one that joins (Unicode Annex 11).

    What joins is of the categories Mn, Me and Cf, or a part of a syllable of Hangul.
    """
    if text.isascii() or _NOT_ONE_CELL.search(text) is None:
        return len(text)
    return sum(map(_cells_of_character, text))


# Vowels and final consonants of Hangul that is written out (NFD, as names of files from a Mac are): drawn
# into the consonant before them, which is wide.
_JOINED_HANGUL = (range(0x1160, 0x1200), range(0xD7B0, 0xD800))


def _cells_of_character(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf") and character != "\u00ad":
        return 0
    if any(ord(character) in joined for joined in _JOINED_HANGUL):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def shortened(text: str, width: int) -> str:
    """`text`, cut to `width` columns with `..` at its end where it is longer."""
    if cells_of(text) <= width:
        return text
    ends = accumulate(map(_cells_of_character, text))
    return text[: sum(end <= width - 2 for end in ends)] + ".."


def sentence(text: str) -> str:
    """`text` with a capital first letter; names such as `nvidia` inside it stay as they are."""
    return text[:1].upper() + text[1:]


def _render_row(headings: Sequence[Column], widths: Sequence[int], row: Sequence[str]) -> str:
    cells = (
        _padded(shortened(cell, width), width, right=column.right)
        for column, width, cell in zip(headings, widths, row, strict=True)
    )
    return _GAP.join(cells).rstrip()


def _padded(text: str, width: int, *, right: bool) -> str:
    spaces = " " * (width - cells_of(text))
    return f"{spaces}{text}" if right else f"{text}{spaces}"


def one_line(text: str, max_characters: int | None = None) -> str:
    """`text` with white space as single spaces and no control characters, cut between words with `..`."""
    line = " ".join("".join(map(_visible, text)).split())
    return line if max_characters is None else shorten_text(line, max_characters)


def safe_lines(text: str) -> str:
    """`text` with its lines and tabs, and a space for every other character that would steer a terminal."""
    return "".join(character if character in "\n\t" else _visible(character) for character in text)


def one_ascii_line(text: str, max_characters: int | None = None) -> str:
    """`text` on one line of printable ASCII, other characters as `?`; cut with `..`."""
    line = one_line(text).encode("ascii", "replace").decode("ascii")
    return one_line(line, max_characters)


def _visible(character: str) -> str:
    """The character; its escape where it is a byte that is no UTF-8, a space where it does not print."""
    category = unicodedata.category(character)
    if category == "Cs":
        return f"\\u{ord(character):04x}"
    return " " if category in _UNSAFE else character
