"""The kernel log of this boot, read under one root: what it says about GPUs and the machine's faults.

/dev/kmsg is asked first: it is current, and cheap. Its ring forgets the oldest lines, so the files that
a syslog daemon keeps are asked for what came before; the journal is asked where there are neither. All
reading is done by a guarded child, within bounds of time, bytes and lines, the newest lines first. A log that
cannot be read, or that is empty, is a reason, never "no events": no running kernel has an empty log.
"""

import errno
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from gpudiag.model.device import SourceState, SourceStatus
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild, collect, start_guarded
from gpudiag.probe.kernel_log.keep import CODE, KeptLine, KeptLines, Line
from gpudiag.probe.kernel_log.lines import MARKERS, MAX_TEXT_CHARACTERS, gpu_named_last, parse_each_line
from gpudiag.probe.kernel_log.places import Place, Ring, places

SOURCE = "kernel_log"
NOT_READ = "not read"
DEADLINE_SECONDS = 1.0
# Of the deadline; the rest is for starting, and for sending what was kept.
READING_SHARE = 0.55
SKIMMING_SHARE = 0.8
BOOT_SECONDS = 120.0  # a log whose first line is no later than this after the boot has all of it

_MARKERS = tuple(marker.encode() for marker in MARKERS)
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
    # Unread lines may hold events: the state says so beside the events that were found.
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
    """Emit the lines of the log that say something, before that deadline; runs in a guarded child.

    Messages, times in seconds since 1970: `("boot", its id, when it began)`; for each log that was read
    `("log", place, first_seconds, [kept line, ...], repeated, alike, unread)`, with how many lines were left
    out and what became of the oldest; for each that was not, `("refused", place, denied, why)`.
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


def _marked(chunk: bytes) -> list[tuple[int, int, bytes]]:
    """(begin, end, marker) of each line that holds a marker, in the chunk's order."""
    found: dict[int, tuple[int, bytes]] = {}
    for marker in _MARKERS:
        at = chunk.find(marker)
        while at >= 0:
            end = chunk.find(b"\n", at)
            end = len(chunk) if end < 0 else end
            found.setdefault(chunk.rfind(b"\n", 0, at) + 1, (end, marker))
            at = chunk.find(marker, end)
    return [(start, *found[start]) for start in sorted(found)]


def _read_boot_seconds(root: Path) -> float:
    """When this boot began, in seconds since 1970, from /proc/stat.

    Raises:
        OSError: it cannot be read.
    """
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
