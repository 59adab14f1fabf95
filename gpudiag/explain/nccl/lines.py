"""NCCL's lines taken out of a log's: who printed each, and its message.

A line is `HOST:PID:THREAD [GPU] NCCL INFO MESSAGE`, since 2.26 with a time before it where
NCCL_DEBUG_TIMESTAMP_LEVELS asks for one; a warning has its place in the source before `NCCL WARN`. Launchers
put prefixes before that, and ranks that write into one file at once put two lines into one. Read from NCCL's
src/debug.cc, 2.18 to 2.32.
"""

import re
from collections.abc import Iterator

from gpudiag.explain.lines import parse_lines
from gpudiag.explain.nccl.facts import Head

MARK = b"NCCL "
_LEVEL = re.compile(r"NCCL (?:INFO|WARN) ")
_HEAD = re.compile(
    r"(?P<host>[^\s:\[\]<>|]*):(?P<pid>\d+):(?P<thread>\d+) \[(?P<gpu>-?\d+)\] "
    r"(?:\S+:\d+ (?:\(\w+\) )?)?NCCL (?:INFO|WARN) "
)
# People take host and pid off what they post, or put words in their place.
_HEAD_END = re.compile(r"(?:([^\s:\[\]<>|]*):(\w+):(\w+) )?\[(-?\d+)\] (?:\S+:\d+ (?:\(\w+\) )?)?$")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+\S*)")
_MAX_HEADS = 20_000  # that are remembered
NOBODY = Head("", 0, 0, -1)


class LineReader:
    """Takes lines apart, and remembers the heads that it has seen: a few stand before all lines of a job."""

    def __init__(self) -> None:
        self._heads: dict[str, Head] = {}
        self._hosts: set[str] = set()

    def read(self, number: int, raw: bytes) -> Iterator[tuple[Head, str]]:
        """Who printed it, and the message, for each line of NCCL that one line of a log holds."""
        if raw[:1] == b"{" or b"\x1b" in raw or b"\r" in raw[:-1]:
            texts = [line.whole for line in parse_lines(number, raw)]
        else:
            texts = [raw.decode(errors="replace")]
        for text in texts:
            level = _LEVEL.search(text)
            if level is None:
                version = _VERSION.search(text)
                if version:
                    yield NOBODY, version[0]
                continue
            head = self._head(text[: level.start()])
            message = text[level.end() :].rstrip()
            if "NCCL " in message and _HEAD.search(message):
                yield from self._apart(head, message)
            else:
                yield head, message

    def _head(self, before: str) -> Head:
        known = self._heads.get(before)
        if known is not None:
            return known
        match = _HEAD_END.search(before)
        if match is None:
            head = NOBODY
        else:
            host, pid, thread, ordinal = match[1] or "", match[2] or "", match[3] or "", int(match[4])
            no_thread = -1 - ordinal  # each GPU stands for a thread of its own
            head = Head(
                host,
                int(pid) if pid.isdecimal() else 0,
                int(thread) if thread.isdecimal() else no_thread,
                ordinal,
            )
        self._hosts.add(head.host)
        if len(self._heads) < _MAX_HEADS:
            self._heads[before] = head
        return head

    def _apart(self, head: Head, message: str) -> Iterator[tuple[Head, str]]:
        """The lines of several ranks that came into one: a host that is known ends the line before it."""
        place = 0
        for match in _HEAD.finditer(message):
            host = max(
                (known for known in self._hosts if known and match["host"].endswith(known)),
                key=len,
                default=match["host"],
            )
            yield head, message[place : match.end("host") - len(host)].rstrip()
            head = Head(host, int(match["pid"]), int(match["thread"]), int(match["gpu"]))
            place = match.end()
        yield head, message[place:]
