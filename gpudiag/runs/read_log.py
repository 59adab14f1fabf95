"""Which known failures are in a log: where, how often, and which of them is the likeliest cause."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import BinaryIO

from gpudiag.model.explanation import MAX_LINE_NUMBERS, Explanation, LogExplanation, Role, Sighting
from gpudiag.model.finding import Outcome
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import NOT_ASKED
from gpudiag.probe.kernel_lines import parse_kernel_line
from gpudiag.reference.failures import failures
from gpudiag.reference.sxid import SXidClass, sxids
from gpudiag.reference.xid import XidKind, xids
from gpudiag.runs.topics import explain_failure, explain_sxid, explain_xid

MAX_LOG_BYTES = 64 * 1024**2  # half from its beginning, half from its end; searched at about 11 MB/s
MAX_LINE_CHARACTERS = 20_000  # of one line, half from each end: a progress bar may be one line of megabytes
MAX_EXCERPT_CHARACTERS = 300

_CHUNK_BYTES = 1 << 20
_XID_MARK = re.compile(r"Xid \(")  # SXid too
_ORDER = (Role.HARDWARE, Role.CAUSE, Role.SYMPTOM)


@dataclass(frozen=True, slots=True)
class LogText:
    """The lines of a log that are kept, and how much of its middle is not."""

    lines: tuple[str, ...]
    end_at: int  # from this line on, the lines come after the gap
    lines_left_out: int
    bytes_left_out: int

    def number(self, index: int) -> int:
        """The number in the whole log, from 1, of the line at `index`."""
        return index + 1 + (self.lines_left_out if index >= self.end_at else 0)


@dataclass(slots=True)
class _Found:
    """One failure and the places of the lines that show it."""

    explanation: Explanation
    role: Role
    follows: tuple[str, ...] = ()
    places: set[int] = field(default_factory=set)


def explain_log(name: str, stream: BinaryIO) -> LogExplanation:
    """What is recognised in a log; hardware comes before other causes, causes before symptoms."""
    text = read_log(stream)
    kernel = _find_kernel_events(text.lines)
    taken = {place for found in kernel for place in found.places}
    everything = [*kernel, *_find_failures(text.lines, taken)]
    topics = {found.explanation.topic for found in everything}
    sightings = [_sighting(found, topics, text) for found in everything]
    sightings.sort(key=lambda sighting: (_ORDER.index(sighting.role), sighting.lines[0]))
    return LogExplanation(name, len(text.lines) + text.lines_left_out, text.bytes_left_out, tuple(sightings))


def read_log(stream: BinaryIO, max_bytes: int = MAX_LOG_BYTES) -> LogText:
    """A log's lines, without the middle of one that is longer than `max_bytes`."""
    half = max_bytes // 2
    head, tail = bytearray(), bytearray()
    bytes_left_out = lines_left_out = 0
    while chunk := stream.read(_CHUNK_BYTES):
        room = half - len(head)
        head += chunk[:room]
        tail += chunk[room:]
        excess = len(tail) - half
        if excess > _CHUNK_BYTES:  # drop in pieces, not byte by byte
            lines_left_out += tail.count(b"\n", 0, excess)
            bytes_left_out += excess
            del tail[:excess]
    if not bytes_left_out:
        lines = _split(head + tail)
        return LogText(lines, len(lines), 0, 0)
    first, last = _split(head), _split(tail)
    # The last line before the gap and the first after it are parts: n line ends in between, n - 1 whole lines.
    return LogText((*first, *last), len(first), lines_left_out - 1, bytes_left_out)


def _split(data: bytearray) -> tuple[str, ...]:
    text = data.decode(errors="replace").removesuffix("\n")
    lines = text.split("\n") if text else []
    half = MAX_LINE_CHARACTERS // 2
    return tuple(line if len(line) <= 2 * half else line[:half] + line[-half:] for line in lines)


def _find_kernel_events(lines: tuple[str, ...]) -> list[_Found]:
    """The Xids and SXids in a log, each code once."""
    found: dict[str, _Found] = {}
    for place, line in enumerate(lines):
        if not _XID_MARK.search(line):
            continue
        event = parse_kernel_line(line, NOT_ASKED)
        explained = None if event is None else _explain_event(event)
        if explained is not None:
            found.setdefault(explained.explanation.topic, explained).places.add(place)
            worst = min(found[explained.explanation.topic].role, explained.role, key=_ORDER.index)
            found[explained.explanation.topic].role = worst
    return list(found.values())


def _explain_event(event: KernelEvent) -> _Found | None:
    if event.xid_code is not None:
        return _Found(explain_xid(event.xid_code), _xid_role(event, event.xid_code))
    if event.sxid_code is not None:
        return _Found(explain_sxid(event.sxid_code), _sxid_role(event.sxid_code))
    return None


def _xid_role(event: KernelEvent, code: int) -> Role:
    xid = xids().get(code)
    if xid is None:
        return Role.CAUSE
    if xid.kind in (XidKind.SYMPATHETIC, XidKind.INFORMATIONAL):
        return Role.SYMPTOM
    outcome = xid.nonfatal_outcome if event.severity == "nonfatal" else xid.outcome
    return Role.HARDWARE if outcome is Outcome.FAIL else Role.CAUSE


def _sxid_role(code: int) -> Role:
    sxid = sxids().get(code)
    if sxid is None or sxid.sxid_class is SXidClass.DISTURBING:
        return Role.CAUSE
    return Role.SYMPTOM if sxid.sxid_class is SXidClass.NOTE else Role.HARDWARE


def _find_failures(lines: tuple[str, ...], taken: set[int]) -> Iterator[_Found]:
    """The known failures in a log; lines in `taken` are explained already."""
    text = "\n".join(lines)
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    explained = set(taken)
    for failure in sorted(failures().values(), key=lambda failure: failure.generic):
        matches = (match for pattern in failure.patterns for match in pattern.finditer(text))
        places = {bisect_right(starts, match.start()) - 1 for match in matches}
        places -= explained if failure.generic else taken
        if not failure.generic:
            explained |= places
        if places:
            yield _Found(explain_failure(failure), failure.role, failure.follows, places)


def _sighting(found: _Found, topics: set[str], text: LogText) -> Sighting:
    places = sorted(found.places)
    follows = next((topic for topic in found.follows if topic in topics), None)
    return Sighting(
        explanation=found.explanation,
        role=Role.SYMPTOM if follows else found.role,
        lines=tuple(text.number(place) for place in places[:MAX_LINE_NUMBERS]),
        count=len(places),
        excerpt=text.lines[places[0]].strip()[:MAX_EXCERPT_CHARACTERS],
        follows=follows,
    )
