"""Bars, small charts and trees, in the characters that the terminal has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Terminals whose fonts have no block elements, whatever the locale is (terminfo(5)).
_PLAIN_TERMINALS = ("linux", "vt100", "vt102", "vt220", "ansi", "cons25")


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of characters: `levels` of a chart from lowest to highest, `parts` of a bar up to full."""

    levels: str
    parts: str
    branch: str
    last_branch: str
    trunk: str
    up: str
    down: str
    arrow: str

    def bar(self, share: float, width: int) -> str:
        """A bar of `width` cells that is filled by that share, from 0 to 1."""
        steps = len(self.parts) - 1
        filled = round(min(1.0, max(0.0, share)) * width * steps)
        whole, rest = divmod(filled, steps)
        part = self.parts[rest] if rest else ""
        return (self.parts[-1] * whole + part).ljust(width)

    def chart(self, values: Sequence[float | None], width: int, lowest: float, highest: float) -> str:
        """The newest values from left to right, one a cell; a blank where there is none."""
        newest = values[-width:] if width else ()
        return "".join(self._level(value, lowest, highest) for value in newest).rjust(width)

    def _level(self, value: float | None, lowest: float, highest: float) -> str:
        if value is None:
            return " "
        share = (value - lowest) / (highest - lowest) if highest > lowest else 0.0
        return self.levels[min(len(self.levels) - 1, max(0, int(share * len(self.levels))))]


BLOCKS = Glyphs("▁▂▃▄▅▆▇█", " ▏▎▍▌▋▊▉█", "├─ ", "└─ ", "│  ", "↑", "↓", "→")
ASCII = Glyphs("_.-=+*%#", " #", "|- ", "`- ", "|  ", "out", "in", "->")


def choose_glyphs(environment: Mapping[str, str]) -> Glyphs:
    """The terminal's characters: blocks where it takes UTF-8 and has them (variables as in locale(7))."""
    locale = next(
        (text for name in ("LC_ALL", "LC_CTYPE", "LANG") if (text := environment.get(name))), "UTF-8"
    )
    takes_utf8 = "utf" in locale.lower()
    return BLOCKS if takes_utf8 and environment.get("TERM", "") not in _PLAIN_TERMINALS else ASCII
