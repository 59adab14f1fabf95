"""The cells of a notebook, each line with its number in the file, also where the JSON is cut off."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class CellLine:
    """A line of a cell, and the number of the line of the file on which it stands."""

    text: str
    number: int


@dataclass(frozen=True, slots=True)
class NotebookCell:
    """One cell: its kind (code, markdown, raw), its number from 1, and its lines."""

    kind: str
    number: int
    lines: tuple[CellLine, ...]


@dataclass(frozen=True, slots=True)
class _Located:
    """A string of the document, and the line that it begins on."""

    text: str
    line: int


@dataclass(slots=True)
class _Level:
    """A list or an object that is being read."""

    value: Any
    key: str | None = None
    keys_next: bool = field(default=True)


def read_cells(text: str) -> tuple[list[NotebookCell] | None, str | None]:
    """The cells and a remark; where the text is no notebook, None and the reason as remark."""
    root, whole = _read_document(text)
    if not isinstance(root, dict):
        return None, "it is no notebook: its JSON is no object"
    cells = root.get("cells")
    if cells is None and isinstance(root.get("worksheets"), list):  # nbformat 3
        cells = [
            cell
            for sheet in root["worksheets"]
            if isinstance(sheet, dict)
            for cell in sheet.get("cells") or []
        ]
    if not isinstance(cells, list):
        return None, "it is no notebook: its JSON has no cells"
    found = []
    for number, cell in enumerate(cells, start=1):
        if not isinstance(cell, dict):
            continue
        kind = cell.get("cell_type")
        source = cell.get("source", cell.get("input"))
        if isinstance(kind, _Located) and source is not None:
            found.append(NotebookCell(kind.text, number, tuple(_cell_lines(source))))
    remark = None if whole else "its JSON is cut off; the cells before the cut were read"
    return found, remark


def _cell_lines(source: Any) -> Iterator[CellLine]:
    """The lines of a source, which is a string or a list of strings."""
    pieces = source if isinstance(source, list) else [source]
    pending, number = "", None
    for piece in pieces:
        if not isinstance(piece, _Located):
            continue
        *ended, last = re.split(r"\r\n|\n|\r", piece.text)
        for line in ended:
            yield CellLine(pending + line, number or piece.line)
            pending, number = "", None
        if last:
            pending, number = pending + last, number or piece.line
    if pending:
        yield CellLine(pending, number or 1)


def _read_document(text: str) -> tuple[Any, bool]:
    """The document with every string located, and whether it is complete; what is open at a cut is closed."""
    root: Any = None
    levels: list[_Level] = []
    line, seen = 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", seen, token.start())
        seen = token.start()
        word = token[0]
        if word in "{[":
            value: Any = {} if word == "{" else []
            if levels:
                _put(levels[-1], value)
            else:
                root = value
            levels.append(_Level(value))
            if len(levels) > _MAX_DEPTH:
                return root, False
        elif word in "}]":
            if not levels:
                return root, False
            levels.pop()
            if not levels:
                return root, True
        elif word == "," and levels:
            levels[-1].keys_next = True
        elif word == ":" and levels:
            levels[-1].keys_next = False
        elif levels:
            _put(levels[-1], _scalar(word, line))
    return root, False


def _put(level: _Level, value: Any) -> None:
    if isinstance(level.value, list):
        level.value.append(value)
    elif level.keys_next and isinstance(value, _Located):
        level.key = value.text
    elif level.key is not None:
        level.value[level.key] = value
        level.key = None


def _scalar(word: str, line: int) -> Any:
    if not word.startswith('"'):
        return None
    try:
        return _Located(json.loads(word, strict=False), line)
    except (ValueError, RecursionError):
        return _Located("", line)
