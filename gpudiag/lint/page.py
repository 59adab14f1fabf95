"""The fenced blocks of a Markdown page, by the rules of CommonMark, also inside lists and quotations."""

import re
from dataclasses import dataclass

_OPENS = re.compile(
    r"^(?P<indent>[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<fence>`{3,}|~{3,})(?P<info>.*)$"
)
_WORD = re.compile(r"[A-Za-z][\w+-]*")


@dataclass(frozen=True, slots=True)
class Fence:
    """One block: its language in small letters, its lines from 0, and their indentation."""

    word: str
    first: int
    end: int  # the closing fence's place, or the number of lines
    indent: int


def read_fences(lines: list[str]) -> list[Fence]:
    """The blocks in order; one that is never closed goes to the end, as renderers show it."""
    fences = []
    place = 0
    while place < len(lines):
        opening = _OPENS.match(lines[place])
        # A run of backticks that closes on its own line is code within a sentence.
        if opening is None or (opening["fence"][0] == "`" and "`" in opening["info"]):
            place += 1
            continue
        mark = opening["fence"]
        closing = re.compile(rf"^[ \t>]*{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$")
        end = place + 1
        while end < len(lines) and not closing.match(lines[end]):
            end += 1
        fences.append(Fence(_language(opening["info"]), place + 1, end, len(opening["indent"])))
        place = end + 1
    return fences


def _language(info: str) -> str:
    """The language: of `python`, `{python}`, `{.python .numberLines}`, `{code-block} python`."""
    words = [word.lower() for word in _WORD.findall(info)]
    if words[:1] in (["code-block"], ["code-cell"], ["code"], ["sourcecode"]):
        words = words[1:]
    return words[0] if words else ""
