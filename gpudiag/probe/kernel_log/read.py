"""The kernel log of this boot, read under one root: its events about GPUs and the machine's faults.

A flood hides no other line: lines that differ in numbers alone are a group, of which the first and last of
each stretch are kept, with a count; Xids, GPUs, units and links are never mixed.

/dev/kmsg is asked first, then for older lines the files of a syslog daemon, else the journal: in a guarded
child, within bounds of time, bytes and lines, the newest first. An empty log is a reason, never "no events".
"""

import errno
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from gpudiag.compat import UTC
from gpudiag.model.device import SourceState, SourceStatus
from gpudiag.model.kernel_log import BURST_SILENCE, KernelEvent
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.untrusted_text import escape_controls
from gpudiag.probe.guard import GuardedChild, collect, start_guarded
from gpudiag.probe.kernel_log.lines import (
    MAX_TEXT_CHARACTERS,
    gpu_named_last,
    has_event,
    markers,
    parse_each_line,
)
from gpudiag.probe.kernel_log.log_sources import Place, Ring, places

# --- which lines are kept

MAX_STRETCHES = (
    16  # of a group: half the newest, half the oldest; those between are joined, whichever job made them
)
MAX_GROUPS = 256  # of one Xid or kind of line; further ones share a group for each GPU
MAX_CODES = 1024
MAX_SHAPES = 20_000  # that are remembered; further ones cost more time

_SILENCE_SECONDS = BURST_SILENCE.total_seconds()
CODE = re.compile(rb"Xid \(([^)]*)\): (\d+)")
# Of 0000:5d:00.0; a literal first character is quick to find.
_ADDRESS_END = re.compile(rb":[0-9a-f]{2}\.[0-7]")
_ADDRESS_BEGIN = len("0000:5d")
# The numbers that distinguish what one Xid is about; an SXid is about a link or an engine.
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
    """The lines of a log with events, within limits; they are added newest first."""

    _groups: dict[_Key, _Group] = field(default_factory=dict)
    _group_of: dict[_Key, _Group] = field(default_factory=dict)  # of the shapes that share one, too
    _groups_of: dict[bytes, int] = field(default_factory=dict)  # how many a code has
    _codes: set[tuple[bytes, bytes]] = field(default_factory=set)
    _dull: set[_Key] = field(default_factory=set)
    _last: tuple[bytes, _Group] | None = (
        None  # a storm is one line again and again: its group is looked up once
    )

    def add(self, line: Line, marker: bytes, about: bytes = b"") -> None:
        """Add one line that holds `marker`, if it has an event; `about` is the GPU named just before it."""
        if not about and self._last is not None and self._last[0] == line.text:
            _add(self._last[1], line)
            return
        key = _key_of(line.text, marker, about)
        group = self._group_of.get(key)
        if group is None:
            if key in self._dull:
                return
            if not has_event(_text(line)):
                if len(self._dull) < MAX_SHAPES:
                    self._dull.add(key)
                return
            group = self._new_group(key)
        self._last = None if about else (line.text, group)
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
    """A line's code, its GPU or switch, its text without numbers, and numbers that distinguish parts."""
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


# --- reading them

SOURCE = "kernel_log"
NOT_READ = "not read"
DEADLINE_SECONDS = 1.0
# Of the deadline; the rest is for starting, and for sending what was kept.
READING_SHARE = 0.55
SKIMMING_SHARE = 0.8
BOOT_SECONDS = 120.0  # a log whose first line is no later than this after the boot has all of it

_OFF_BUS = b"fallen off the bus"


@dataclass(frozen=True, slots=True)
class KernelLogReading:
    """What the kernel log gave: its events or the reason for none, and how the source answered."""

    events: Reading[tuple[KernelEvent, ...]]
    status: SourceStatus


def read_kernel_log(
    root: Path = Path("/"), *, deadline_seconds: float = DEADLINE_SECONDS
) -> KernelLogReading:
    """The events of this boot in the kernel log under `root`, oldest first, or the reason for none."""
    child = start_kernel_log(root, deadline_seconds=deadline_seconds)
    collect([(child, child.started_at + deadline_seconds)])
    return finish_kernel_log(child)


def start_kernel_log(
    root: Path | str = Path("/"), *, deadline_seconds: float = DEADLINE_SECONDS
) -> GuardedChild:
    """A running child that reads the kernel log; `collect` it, then give it to `finish_kernel_log`."""
    return start_guarded("gpudiag.probe.kernel_log.read:stream_kernel_log", str(root), deadline_seconds)


def finish_kernel_log(child: GuardedChild) -> KernelLogReading:
    """The reading of an ended child of `start_kernel_log`."""
    if child.ending != "finished":
        return _not_read(child)
    refusals = [message for message in child.messages if message[0] == "refused"]
    logs = [message for message in child.messages if message[0] == "log"]
    if not logs:
        return _refused(refusals, child.seconds)
    kept = sorted(KeptLine(*line) for log in logs for line in log[3])
    (boot,) = (message for message in child.messages if message[0] == "boot")
    events = tuple(_events(kept, boot[1], boot[2]))
    # Unread lines may hold events: the state reports it beside the events that were found.
    state = SourceState.TIMED_OUT if any(log[6] == NOT_READ for log in logs) else SourceState.OK
    return KernelLogReading(events, SourceStatus(SOURCE, state, _words(logs), child.seconds))


def _events(kept: list[KeptLine], boot_id: str | None, boot_began: float) -> Iterator[KernelEvent]:
    """The events in the kept lines, each with its time since boot and how many lines it stands for."""
    parsed = parse_each_line((_moment(line.seconds), line.text) for line in kept)
    for line, event in zip(kept, parsed, strict=True):
        if event is not None:
            logged = replace(event, boot_id=boot_id, boot_seconds=round(line.seconds - boot_began, 3))
            yield replace(logged, more=line.more, until=_moment(line.until)) if line.more else logged


def _words(logs: list[Any]) -> str:
    """Which logs were read, back to when, and what of them was not kept or not read."""
    names = " and ".join(f"/{place}" for _, place, *_ in logs)
    since = f"{_moment(min(log[2] for log in logs)):%Y-%m-%d %H:%M:%S} UTC"
    notes = [f"read from {names}, since {since}"]
    repeated, alike = (sum(log[place] for log in logs) for place in (4, 5))
    if repeated:
        notes.append(f"{repeated} repeated lines left out")
    if alike:
        notes.append(f"{alike} lines left out that differ from kept ones only in their numbers")
    notes += [f"older lines were {log[6]}: there was no time left" for log in logs if log[6]]
    return "; ".join(notes)


def _not_read(child: GuardedChild) -> KernelLogReading:
    late = child.ending == "timed_out"
    words = "the kernel log did not answer by the deadline" if late else child.detail or "its reader crashed"
    reason = MissingReason.TIMED_OUT if late else MissingReason.ERROR
    state = SourceState.TIMED_OUT if late else SourceState.FAILED
    return KernelLogReading(Missing(reason, words), SourceStatus(SOURCE, state, words, child.seconds))


def _refused(refusals: list[Any], seconds: float) -> KernelLogReading:
    words = "; ".join(f"{place}: {why}" for _, place, _, why in refusals) or "no kernel log found"
    if any(denied for _, _, denied, _ in refusals):
        words += "; read it as root, or as a member of the group adm"
        missing, state = Missing(MissingReason.NO_PERMISSION, words), SourceState.NO_PERMISSION
    else:
        missing, state = Missing(MissingReason.SOURCE_ABSENT, words), SourceState.FAILED
    return KernelLogReading(missing, SourceStatus(SOURCE, state, words, seconds))


def stream_kernel_log(emit: Callable[[Any], None], root_text: str, deadline_seconds: float) -> None:
    """Emit the lines of the log with events, before that deadline; runs in a guarded child.

    Messages, times in Unix seconds: `("boot", id, began)`; for each log read `("log", place, first_seconds,
    [kept line, ...], repeated, alike, unread)`; for each other `("refused", place, denied, why)`.
    """
    until = monotonic() + deadline_seconds * READING_SHARE
    root = Path(root_text)
    boot_seconds = _read_boot_seconds(root)
    emit(("boot", _read_boot_id(root), boot_seconds))
    earliest: float | None = None  # what the logs read so far reach back to
    for place in places(root, boot_seconds):
        log = _Log(place, boot_seconds, earliest)
        try:
            log.read(until, until + (SKIMMING_SHARE - READING_SHARE) * deadline_seconds)
        except OSError as error:
            denied = error.errno in (errno.EPERM, errno.EACCES)
            emit(("refused", f"/{place.name}", denied, error.strerror or str(error)))
            continue
        if log.first_seconds is None:
            if earliest is None:
                emit(("refused", f"/{place.name}", False, "it has no line from this boot"))
            continue
        kept = [tuple(line) for line in log.kept.lines()]
        emit(("log", place.name, log.first_seconds, kept, *log.kept.left_out(), log.unread))
        earliest = log.first_seconds
        if log.is_whole or log.unread:
            return


class _Log:
    """One log while it is read, newest lines first."""

    def __init__(self, place: Place, not_before: float, before: float | None) -> None:
        """Take only lines from `not_before` (the boot) up to `before`, from where another log was read."""
        self.kept = KeptLines()
        self.first_seconds: float | None = None
        self.is_whole = False  # it reaches back to the boot
        self.unread = ""  # what was done to the older lines, for want of time
        self._place = place
        self._not_before = not_before
        self._before = before
        self._order = 0

    def read(self, until: float, skim_until: float) -> None:
        """Read until `until`, at least the newest chunk; then skim older ones until `skim_until`.

        Raises:
            OSError: it cannot be read.
        """
        for chunk in self._place.chunks():
            in_time = self.first_seconds is None or monotonic() <= until
            if not in_time and monotonic() > skim_until:
                self.unread = NOT_READ
                return
            began = self._place.stamp(chunk)
            if self._before is None or began is None or began < self._before:
                if in_time:
                    self._add(chunk, _marked(chunk))
                else:
                    self.unread = "only searched for new Xids"
                    self._add(chunk, self._new_codes(chunk))
                self._note_first(chunk)
            if began is not None and began < self._not_before:
                break
        first, is_ring = self.first_seconds, isinstance(self._place, Ring)
        reaches_back = first is not None and first <= self._not_before + BOOT_SECONDS
        self.is_whole = self._place.complete or (reaches_back and not is_ring)

    def _note_first(self, chunk: bytes) -> None:
        """Remember the oldest line of this boot."""
        for line in chunk.split(b"\n"):
            parsed = self._place.parse(line)
            if parsed is not None and self._is_of_interest(parsed[0]):
                self.first_seconds = parsed[0]
                return

    def _is_of_interest(self, seconds: float) -> bool:
        return self._not_before <= seconds and (self._before is None or seconds < self._before)

    def _add(self, chunk: bytes, lines: list[tuple[int, int, bytes]]) -> None:
        """Offer the chunk's lines at those (begin, end, marker) to `kept`, newest first."""
        for start, end, marker in reversed(lines):
            parsed = self._place.parse(chunk[start:end])
            if parsed is None or not self._is_of_interest(parsed[0]):
                continue
            seconds, text = parsed
            for part in reversed(text.split(b"\n")) if b"\n" in text else (text,):
                self._order -= 1
                about = gpu_named_last(chunk, end) if _OFF_BUS in part else b""
                self.kept.add(Line(seconds, self._order, part[:MAX_TEXT_CHARACTERS]), marker, about)

    def _new_codes(self, chunk: bytes) -> list[tuple[int, int, bytes]]:
        """(begin, end, marker) of each line whose code no line about that GPU or switch has had yet."""
        found = []
        for match in CODE.finditer(chunk):
            if not self.kept.has_code(match):
                end = chunk.find(b"\n", match.end())
                begin = chunk.rfind(b"\n", 0, match.start()) + 1
                found.append((begin, len(chunk) if end < 0 else end, b"NVRM"))
        return found


@cache
def _markers() -> tuple[bytes, ...]:
    return tuple(marker.encode() for marker in markers())


def _marked(chunk: bytes) -> list[tuple[int, int, bytes]]:
    """(begin, end, marker) of each line that holds a marker, in the chunk's order."""
    found: dict[int, tuple[int, bytes]] = {}
    for marker in _markers():
        at = chunk.find(marker)
        while at >= 0:
            end = chunk.find(b"\n", at)
            end = len(chunk) if end < 0 else end
            found.setdefault(chunk.rfind(b"\n", 0, at) + 1, (end, marker))
            at = chunk.find(marker, end)
    return [(start, *found[start]) for start in sorted(found)]


def _read_boot_seconds(root: Path) -> float:
    """When this boot began, in Unix seconds, from /proc/stat. Raises OSError: it cannot be read."""
    text = (root / "proc/stat").read_text()
    match = re.search(r"^btime (\d+)$", text, re.MULTILINE)
    if match is None:
        raise OSError(errno.ENODATA, "/proc/stat has no btime: the time of this boot is not known")
    return float(match[1])


def _read_boot_id(root: Path) -> str | None:
    """The kernel's own name for this boot; None where it gives none."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
