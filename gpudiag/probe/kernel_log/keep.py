"""Which lines of a kernel log are kept where there are thousands: a few of each kind, GPU and code.

A flood of one kind must not hide a single line of another. Lines that differ only in their numbers are one
group, and of each stretch of a group its first line (the root of a burst) and its last are kept, with how
many came between. Lines of different Xids, GPUs, units or links are never in one group, so nothing here needs
to know which are serious.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpudiag.model.kernel_log import BURST_SILENCE
from gpudiag.model.untrusted_text import escape_controls
from gpudiag.probe.kernel_log.lines import says_something

MAX_STRETCHES = (
    16  # of a group: half the newest, half the oldest; those between are joined, whichever job made them
)
MAX_GROUPS = 256  # of one Xid or kind of line; further ones share a group for each GPU
MAX_CODES = 1024
MAX_SHAPES = 20_000  # that are remembered; further ones cost more time

_SILENCE_SECONDS = BURST_SILENCE.total_seconds()
CODE = re.compile(rb"Xid \(([^)]*)\): (\d+)")
_ADDRESS_END = re.compile(
    rb":[0-9a-f]{2}\.[0-7]"
)  # of 0000:5d:00.0; a literal first character is quick to find
_ADDRESS_BEGIN = len("0000:5d")
# The numbers that tell apart what one Xid is about; an SXid is about a link or an engine.
_LINK = re.compile(rb"[Ll]ink -?\d+(?: \(0x[0-9a-f]{3})?")
_ENGINE = re.compile(rb"Link \d+|Engine instance \d+")
_DETAILS = {
    b"Xid13": re.compile(rb"GPC \d+, ?TPC \d+"),
    b"Xid45": re.compile(rb"previous Xid \d+"),
    b"Xid154": re.compile(rb"to 0x[0-9a-f]+"),
    **{f"Xid{code}".encode(): _LINK for code in (74, *range(144, 151), 155)},
}
_DIGITS = b"0123456789abcdef"  # without them, lines that differ only in their numbers are equal

_Key = tuple[bytes, ...]


class Line(NamedTuple):
    """A line of a log: when it was logged, in seconds since 1970, and its order among lines of one time."""

    seconds: float
    order: int
    text: bytes


class KeptLine(NamedTuple):
    """A kept line, which stands for `more` lines left out, up to `until` (seconds since 1970)."""

    seconds: float
    order: int
    text: str
    more: int
    until: float


@dataclass(slots=True)
class _Stretch:
    """Lines of one group with no long gap between them, added newest first."""

    first: Line
    last: Line
    pid: bytes
    count: int = 1
    equal: int = 0  # of the others, those with the same text as the last


@dataclass(slots=True)
class _Group:
    """Lines that differ only in their numbers."""

    newest: list[_Stretch] = field(default_factory=list)
    between: list[_Stretch] = field(default_factory=list)
    oldest: list[_Stretch] = field(default_factory=list)

    def stretches(self) -> Iterator[_Stretch]:
        """All of them, newest first."""
        yield from self.newest
        yield from self.between
        yield from self.oldest


@dataclass(slots=True)
class KeptLines:
    """The lines of a log that say something, within limits; they are added newest first."""

    _groups: dict[_Key, _Group] = field(default_factory=dict)
    _group_of: dict[_Key, _Group] = field(default_factory=dict)  # of the shapes that share one, too
    _groups_of: dict[bytes, int] = field(default_factory=dict)  # how many a code has
    _codes: set[tuple[bytes, bytes]] = field(default_factory=set)
    _dull: set[_Key] = field(default_factory=set)

    def add(self, line: Line, marker: bytes, about: bytes = b"") -> None:
        """Add one line that holds `marker`, if it says something; `about` is the GPU named just before it."""
        key = _key_of(line.text, marker, about)
        group = self._group_of.get(key)
        if group is None:
            if key in self._dull:
                return
            if not says_something(_text(line)):
                if len(self._dull) < MAX_SHAPES:
                    self._dull.add(key)
                return
            group = self._new_group(key)
        _add(group, line)

    def has_code(self, match: re.Match[bytes]) -> bool:
        """Whether a line with that code, about that GPU or switch, was added; `match` is one of `CODE`."""
        return (_name_of(match), match[1]) in self._codes

    def lines(self) -> Iterator[KeptLine]:
        """The lines that were kept, in no particular order."""
        for group in self._groups.values():
            for stretch in group.stretches():
                yield from _ends(stretch)

    def left_out(self) -> tuple[int, int]:
        """Two counts of lines left out: equal to a kept line, and equal to one but for their numbers."""
        equal = alike = 0
        for group in self._groups.values():
            for stretch in group.stretches():
                inner = max(0, stretch.count - 2)
                same = min(inner, stretch.equal)
                equal += same
                alike += inner - same
        return equal, alike

    def _new_group(self, key: _Key) -> _Group:
        """The group for a new shape; a shared one where its code has too many groups."""
        code = key[0] if key[0] in self._groups_of or len(self._groups_of) < MAX_CODES else b""
        count = self._groups_of.setdefault(code, 0)
        shared: _Key = (code, *key[1:])
        if count >= MAX_GROUPS:
            shared = (code, key[1]) if (code, key[1]) in self._groups or count < 2 * MAX_GROUPS else (code,)
        self._codes.add((key[0], key[1]))
        if shared not in self._groups:
            self._groups_of[code] += 1
            self._groups[shared] = _Group()
        group = self._groups[shared]
        if len(self._group_of) < MAX_SHAPES:
            self._group_of[key] = group
        return group


def _key_of(text: bytes, marker: bytes, about: bytes) -> _Key:
    """A line's code, its GPU or switch, its text without numbers, and numbers that tell parts apart."""
    code = CODE.search(text)
    if code is None:
        address = _ADDRESS_END.search(text)
        part = text[max(0, address.start() - _ADDRESS_BEGIN) : address.end()] if address else about
        return marker, part, text.translate(None, _DIGITS)
    end = code.end()
    name = _name_of(code)
    pattern = _ENGINE if name.startswith(b"S") else _DETAILS.get(name)
    detail = pattern.search(text, end) if pattern else None
    return name, code[1], text[end:].translate(None, _DIGITS), detail[0] if detail else b""


def _name_of(code: re.Match[bytes]) -> bytes:
    """`Xid79` or `SXid12028`."""
    is_switch = code.string.startswith(b"S", code.start() - 1)
    return (b"SXid" if is_switch else b"Xid") + code[2]


def _add(group: _Group, line: Line) -> None:
    """Add a line, older than all those added before, to its stretch."""
    stretches = group.oldest or group.newest
    job = _job_of(line.text)
    if stretches:
        stretch = stretches[-1]
        if stretch.pid == job and stretch.first.seconds - line.seconds <= _SILENCE_SECONDS:
            stretch.equal += line.text == stretch.last.text
            stretch.first = line
            stretch.count += 1
            return
    half = MAX_STRETCHES // 2
    if len(group.newest) < half:
        group.newest.append(_Stretch(line, line, job))
        return
    group.oldest.append(_Stretch(line, line, job))
    if len(group.oldest) > half:
        _join(group.between, group.oldest.pop(0))


def _join(stretches: list[_Stretch], older: _Stretch) -> None:
    """Append an older stretch; merge it into the last one if it is near in time, or if there are too many."""
    joined = stretches[-1] if stretches else None
    is_near = joined is not None and joined.first.seconds - older.last.seconds <= _SILENCE_SECONDS
    if joined is None or (not is_near and len(stretches) < MAX_STRETCHES):
        stretches.append(older)
        return
    joined.count += older.count
    if is_near:
        joined.first = older.first


def _job_of(text: bytes) -> bytes:
    """The process that a line names, `4711` of `pid=4711, name=python3`; empty for none."""
    at = text.find(b" pid=")
    return text[at + 5 : text.find(b",", at)] if at >= 0 else b""


def _ends(stretch: _Stretch) -> Iterable[KeptLine]:
    first, last = stretch.first, stretch.last
    yield KeptLine(first.seconds, first.order, _text(first), max(0, stretch.count - 2), last.seconds)
    if stretch.count > 1:
        yield KeptLine(last.seconds, last.order, _text(last), 0, last.seconds)


def _text(line: Line) -> str:
    return escape_controls(line.text.decode(errors="replace"))
