"""The kernel log of this boot, read under one root: what it says about GPUs and the machine's faults.

/dev/kmsg is asked first: it is current, and cheap. Its ring forgets the oldest lines, so the files that
a syslog daemon keeps are asked for what came before; the journal is asked where there are neither. All
reading is done by a guarded child, within bounds of time, bytes and lines. A log that cannot be read, or
that is empty, is a reason, never "no events": no running kernel has an empty log.
"""

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from stat import S_ISCHR
from typing import Any

from gpudiag.model.device import SourceState, SourceStatus
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild, collect, die_with, start_guarded
from gpudiag.probe.kernel_lines import parse_kernel_lines

SOURCE = "kernel_log"
DEADLINE_SECONDS = 1.0
MAX_FILE_BYTES = 8 * 1024**2  # the end of a syslog file; about 60,000 lines
MAX_RECORDS = 200_000  # of /dev/kmsg; the largest ring that CONFIG_LOG_BUF_SHIFT allows holds fewer
MAX_LINES_PER_MARKER = 400  # half from the first, half from the last: the first line of a burst is its root

_RECORD_BYTES = 16384  # the kernel gives EINVAL to a buffer smaller than its record, at most 8 KiB
_FILES = ("var/log/kern.log", "var/log/messages", "var/log/syslog")
# `--dmesg` is this boot's kernel messages; journalctl(1).
_JOURNAL = ("journalctl", "--dmesg", "--output=short-unix", "--no-pager", "--quiet", "--lines=50000")
# A line without one of these words is no event of ours; `kernel_lines` looks at the rest more closely.
_MARKERS = (
    "NVRM", "SXid", "PCIe Bus Error", "ut of memory", "soft lockup", "blocked for more than",
    "Hardware Error", "EDAC",
)  # fmt: skip

_KMSG_RECORD = re.compile(r"\d+,(?P<sequence>\d+),(?P<microseconds>\d+),[^;]*;(?P<text>.*)", re.DOTALL)
_KERNEL_TAG = r"\s+\S+\s+kernel:\s*(?:\[\s*\d+\.\d+\]\s*)?(?P<text>.*)"
_ISO_LINE = re.compile(
    r"(?P<stamp>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)?)" + _KERNEL_TAG
)
_BSD_LINE = re.compile(r"(?P<stamp>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)" + _KERNEL_TAG)
_UNIX_LINE = re.compile(r"(?P<stamp>\d{9,10}\.\d+)" + _KERNEL_TAG)


@dataclass(frozen=True, slots=True)
class KernelLogReading:
    """What the kernel log gave: its events or the reason for none, and how the source answered."""

    events: Reading[tuple[KernelEvent, ...]]
    status: SourceStatus


def read_kernel_log(
    root: Path = Path("/"), *, deadline_seconds: float = DEADLINE_SECONDS
) -> KernelLogReading:
    """The events of this boot in the kernel log under `root`, oldest first, or the reason for none."""
    child = start_kernel_log(root)
    collect([(child, child.started_at + deadline_seconds)])
    return finish_kernel_log(child)


def start_kernel_log(root: Path = Path("/")) -> GuardedChild:
    """A running child that reads the kernel log; `collect` it, then give it to `finish_kernel_log`."""
    return start_guarded("gpudiag.probe.kmsg:stream_kernel_log", str(root))


def finish_kernel_log(child: GuardedChild) -> KernelLogReading:
    """What an ended child has found."""
    if child.ending != "finished":
        return _not_read(child)
    refusals = [message for message in child.messages if message[0] == "refused"]
    logs = [message for message in child.messages if message[0] == "log"]
    if not logs:
        return _refused(refusals, child.seconds)
    lines = sorted((line for _, _, _, kept, _ in logs for line in kept), key=lambda line: line[0])
    parsed = parse_kernel_lines((_moment(seconds), text) for seconds, text in lines)
    (boot,) = (message for message in child.messages if message[0] == "boot")
    events = tuple(_logged_in(event, boot[1], boot[2]) for event in parsed)
    left_out = sum(dropped for *_, dropped in logs)
    places = " and ".join(f"/{place}" for _, place, *_ in logs)
    notes = [f"read from {places}, since {_moment(min(log[2] for log in logs)):%Y-%m-%d %H:%M:%S} UTC"]
    if left_out:
        notes.append(f"{left_out} repeated lines left out")
    return KernelLogReading(events, SourceStatus(SOURCE, SourceState.OK, "; ".join(notes), child.seconds))


def _logged_in(event: KernelEvent, boot_id: str | None, boot_began: float) -> KernelEvent:
    if isinstance(event.at, Missing):
        return event
    return replace(event, boot_id=boot_id, boot_seconds=round(event.at.timestamp() - boot_began, 3))


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


def stream_kernel_log(emit: Callable[[Any], None], root_text: str) -> None:
    """Emit the log's telling lines; runs in a guarded child.

    Messages: `("boot", its id, when it began)`, `("log", place, first_seconds, [(seconds, text), ...], lines_left_out)` for each log that
    was read, times as seconds since 1970; `("refused", place, denied, why)` for each that was not.
    """
    root = Path(root_text)
    boot_seconds = _read_boot_seconds(root)
    emit(("boot", _read_boot_id(root), boot_seconds))
    earliest: float | None = None  # what the logs read so far reach back to
    for place, read in _logs(root, boot_seconds):
        kept = _Kept()
        try:
            for seconds, text in read():
                kept.take(seconds, text, boot_seconds, earliest)
        except OSError as error:
            emit(
                (
                    "refused",
                    f"/{place}",
                    error.errno in (errno.EPERM, errno.EACCES),
                    error.strerror or str(error),
                )
            )
            continue
        if kept.first_seconds is None:
            if earliest is None:
                emit(("refused", f"/{place}", False, "it has no line of this boot"))
            continue
        emit(("log", place, kept.first_seconds, kept.lines(), kept.left_out))
        if not kept.lost_lines:
            return
        earliest = kept.first_seconds


@dataclass(slots=True)
class _Kept:
    """The telling lines of one log, within bounds."""

    first_seconds: float | None = None
    lost_lines: bool = False  # the log's own beginning is gone
    left_out: int = 0
    _first: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    _last: dict[str, deque[tuple[float, str]]] = field(default_factory=dict)

    def take(self, seconds: float, text: str, not_before: float, before: float | None) -> None:
        """Look at one line; `text` is empty for the mark that earlier lines are lost."""
        if not text:
            self.lost_lines = True
            return
        if seconds < not_before or (before is not None and seconds >= before):
            return
        self.first_seconds = seconds if self.first_seconds is None else min(self.first_seconds, seconds)
        marker = next((marker for marker in _MARKERS if marker in text), None)
        if marker is None:
            return
        half = MAX_LINES_PER_MARKER // 2
        first = self._first.setdefault(marker, [])
        if len(first) < half:
            first.append((seconds, text))
            return
        last = self._last.setdefault(marker, deque(maxlen=half))
        self.left_out += len(last) == half
        last.append((seconds, text))

    def lines(self) -> list[tuple[float, str]]:
        """The lines that were kept, oldest first."""
        groups: Iterable[Iterable[tuple[float, str]]] = (*self._first.values(), *self._last.values())
        return sorted((line for group in groups for line in group), key=lambda line: line[0])


_Lines = Iterator[tuple[float, str]]


def _logs(root: Path, boot_seconds: float) -> Iterator[tuple[str, Callable[[], _Lines]]]:
    """Each log that there may be, the most current first."""
    yield "dev/kmsg", partial(_read_kmsg, root / "dev/kmsg", boot_seconds)
    for place in _FILES:
        if (root / place).exists():
            yield place, partial(_read_syslog, root / place)
    if root == Path("/"):
        yield "run/log/journal", _read_journal


def _read_kmsg(path: Path, boot_seconds: float) -> _Lines:
    """Every record of /dev/kmsg, or of a file of such records."""
    first = True
    for record in _kmsg_records(path):
        match = _KMSG_RECORD.match(record)
        if match is None:
            continue
        seconds = boot_seconds + int(match["microseconds"]) / 1e6
        if first and int(match["sequence"]) > 0:
            yield seconds, ""
        first = False
        for line in match["text"].replace("\\x0a", "\n").splitlines():
            if line and not line.startswith(
                " "
            ):  # a line that starts with a space is the record's dictionary
                yield seconds, line


def _kmsg_records(path: Path) -> Iterator[str]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not S_ISCHR(os.fstat(descriptor).st_mode):
            yield from os.read(descriptor, MAX_FILE_BYTES).decode(errors="replace").splitlines()
            return
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:  # that was the last one
                return
            except BrokenPipeError:  # overwritten while we read; the next read goes on with the oldest left
                continue
            if not record:
                return
            yield record.decode(errors="replace")
    finally:
        os.close(descriptor)


def _read_syslog(path: Path) -> _Lines:
    """The kernel's lines in the end of a file that a syslog daemon wrote."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - MAX_FILE_BYTES))
        text = file.read(MAX_FILE_BYTES).decode(errors="replace")
    whole_lines = text.splitlines()[1 if start else 0 :]
    yield from _tagged_lines(whole_lines, os.stat(path).st_mtime)


def _read_journal() -> _Lines:
    """The kernel's lines of this boot from systemd's journal.

    Raises:
        OSError: journalctl is not installed, or gave nothing.
    """
    import subprocess  # late: only a machine with neither /dev/kmsg nor a syslog file needs it

    with subprocess.Popen(
        _JOURNAL,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=partial(die_with, os.getpid()),
    ) as journal:
        assert journal.stdout is not None  # noqa: S101 - asked for above
        text = journal.stdout.read().decode(errors="replace")
    if not text:
        raise PermissionError(errno.EACCES, "the journal shows no kernel line to this user")
    yield from _tagged_lines(text.splitlines(), datetime.now(UTC).timestamp())


def _tagged_lines(lines: Iterable[str], written_until: float) -> _Lines:
    """The kernel's lines among a syslog's, with their times; other programs may quote the kernel."""
    for line in lines:
        for pattern, parse in _LAYOUTS:
            match = pattern.match(line)
            if match:
                yield parse(match["stamp"], written_until), match["text"]
                break


def _parse_iso(stamp: str, _written_until: float) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def _parse_unix(stamp: str, _written_until: float) -> float:
    return float(stamp)


def _parse_bsd(stamp: str, written_until: float) -> float:
    """Seconds for a stamp without a year, in local time: the latest year that is not in the future."""
    latest = datetime.fromtimestamp(written_until) + timedelta(days=1)
    for year in range(latest.year, latest.year - 5, -1):  # 29 February needs a leap year
        try:
            moment = datetime.strptime(f"{year} {stamp}", "%Y %b %d %H:%M:%S")
        except ValueError:
            continue
        if moment <= latest:
            return moment.timestamp()
    return written_until


_LAYOUTS = ((_ISO_LINE, _parse_iso), (_BSD_LINE, _parse_bsd), (_UNIX_LINE, _parse_unix))


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
