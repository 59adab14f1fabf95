"""Comments that silence rules: on a line, above a line, or for the whole file.

`# gpudiag: ignore[lint.CODE]` at the end of a line silences the code there; alone on a line, on the next one;
alone before the first statement, or as `ignore-file[..]` anywhere, in the whole file. Without a code it
silences all.
"""

import re
from dataclasses import dataclass, field

_COMMENT = re.compile(
    r"(?:#|<!--)\s*gpudiag:\s*ignore(?P<file>-file)?\s*(?:\[(?P<codes>[^\]]*)\])?", re.IGNORECASE
)
_ALL = "*"


@dataclass(slots=True)
class Silence:
    """Which codes are silenced where."""

    everywhere: set[str] = field(default_factory=set)
    lines: dict[int, set[str]] = field(default_factory=dict)

    @property
    def codes(self) -> set[str]:
        """All codes that are named."""
        return set.union(self.everywhere, *self.lines.values()) - {_ALL}

    def covers(self, code: str, line: int) -> bool:
        """Whether a code is silenced on a line."""
        wanted = {code, _ALL}
        return bool(self.everywhere & wanted or self.lines.get(line, set()) & wanted)


def read_silences(text: str, kind: str = "script") -> Silence:
    """What the comments of a file silence; of a notebook, those within the strings of its cells."""
    silence = Silence()
    if "gpudiag" not in text.lower():
        return silence
    lines = re.split(r"\r\n|\n|\r", text)
    in_head = kind == "script"
    for number, line in enumerate(lines, start=1):
        found = _COMMENT.search(line)
        before = line[: found.start()].strip() if found else line.strip()
        if kind == "notebook":
            before = before.strip('" ,\\n')
        if found is not None:
            codes = _codes(found["codes"])
            if found["file"] or (in_head and not before):
                silence.everywhere |= codes
            elif before and before not in (">", "*", "-"):
                silence.lines.setdefault(number, set()).update(codes)
            else:
                silence.lines.setdefault(_next_line(lines, number), set()).update(codes)
        if in_head and before and not before.startswith("#"):
            in_head = False
    return silence


def _codes(text: str | None) -> set[str]:
    if text is None or not text.strip():
        return {_ALL}
    words = (word.strip().lower() for word in text.split(","))
    return {word if word.startswith("lint.") else f"lint.{word}" for word in words if word}


def _next_line(lines: list[str], number: int) -> int:
    """The number of the next line with something on it that is no comment."""
    for later in range(number, len(lines)):
        bare = lines[later].strip().strip('" ,')
        if bare and not bare.startswith("#"):
            return later + 1
    return number
