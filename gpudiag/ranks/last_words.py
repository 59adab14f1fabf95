"""What a process wrote to its standard error, cut so that what matters is left: head, telling lines, tail.

A CUDA error is said in one line, and some kilobytes of C++ frames and dumps follow it.
"""

import re
from pathlib import Path

_WHOLE_BYTES = 3000
_HEAD_BYTES = 500
_TAIL_BYTES = 1500
_LINES_AT_MOST = 12
_LINE_CHARACTERS = 300
_READ_BYTES = 1 << 20  # of the start, and of the end: a rank may write for hours

_TELLING = re.compile(
    r"error|exception|warn|fatal|failed|out of memory|terminate called|what\(\)|abort|assert|xid|timed? ?out",
    re.IGNORECASE,
)
_FRAME = re.compile(r"^\s*(frame #\d+|#\d+ |File \"|at )")  # of a C++ or Python stack: its words tell nothing


def read_last_words(path: Path) -> str:
    """What the file says, whole where it is short; empty where it is empty or not there."""
    try:
        with path.open("rb") as file:
            data = file.read(_READ_BYTES)
            rest = max(len(data), path.stat().st_size - _READ_BYTES)
            file.seek(rest)
            data += file.read(_READ_BYTES)
    except OSError:
        return ""
    return shorten(data)


def shorten(data: bytes) -> str:
    """The text, or of a long one its start, the lines between that tell something, and its end."""
    if len(data) <= _WHOLE_BYTES:
        return data.decode(errors="replace").strip()
    head = data[:_HEAD_BYTES].rpartition(b"\n")[0] or data[:_HEAD_BYTES]
    tail = data[-_TAIL_BYTES:].partition(b"\n")[2] or data[-_TAIL_BYTES:]
    between = data[len(head) : len(data) - len(tail)].decode(errors="replace").splitlines()
    told = list(dict.fromkeys(line.strip()[:_LINE_CHARACTERS] for line in between if _tells(line)))
    parts = [head.decode(errors="replace").strip(), *_cut(told), tail.decode(errors="replace").strip()]
    return "\n".join(parts)


def _tells(line: str) -> bool:
    return bool(_TELLING.search(line)) and not _FRAME.match(line)


def _cut(lines: list[str]) -> list[str]:
    """The first of the lines, between marks that say that something was left out."""
    return ["[...]", *lines[:_LINES_AT_MOST], "[...]"] if lines else ["[...]"]
