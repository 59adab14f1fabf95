"""Where a kernel log is kept: each place gives its lines in chunks, the newest first, as time may run out."""

import errno
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from stat import S_ISCHR
from time import time
from typing import IO, Protocol

from gpudiag.compat import parse_iso_time
from gpudiag.linux.child import die_with_parent
from gpudiag.probe.kernel_log.lines import reports_restart

MAX_BYTES = 64 * 1024**2  # of one place; about 500,000 lines
MAX_RECORDS = 1_000_000  # of /dev/kmsg, which may be written while it is read
CHUNK_BYTES = 1 << 18  # some 2,000 lines: a few milliseconds of work
RING = "dev/kmsg"
JOURNAL = "run/log/journal"

_RECORD_BYTES = 16384  # the kernel gives EINVAL to a buffer smaller than its record, at most 8 KiB
_FILES = ("var/log/kern.log", "var/log/messages", "var/log/syslog")
# `--dmesg` is this boot's kernel messages; journalctl(1).
_JOURNAL_COMMAND = ("journalctl", "--dmesg", "--output=short-unix", "--no-pager", "--quiet", "--reverse")

# 3,5001,200000000,-;NVRM: Xid ...   and behind the flags, since Linux 5.1, `caller=T123`
_KMSG_RECORD = re.compile(rb"\d+,(?P<sequence>\d+),(?P<microseconds>\d+),[^;]*;(?P<text>.*)")
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
# Nov 22 19:16:43 host kernel: [   12.345678] text      and the layout of RFC 5424:
# <3>1 2026-11-22T19:16:43Z host kernel - - - text
_STAMP = (
    rb"(?:<\d+>(?:1 )?)?(?:"
    rb"(?P<bsd>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)|"
    rb"(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)|"
    rb"(?P<unix>\d{9,10}\.\d+))\s"
)
_KERNEL_TAG = (
    rb"\s*\S+\s+(?:\w+\.\w+\s+)?kernel(?:\[\d+\])?(?::| - - -)\s*"
    rb"(?:\[\s*\d+\.\d+\](?:\[\s*[TC]\d+\])?\s*)?(?P<text>.*)"
)
_ANY_LINE = re.compile(_STAMP)
_KERNEL_LINE = re.compile(_STAMP + _KERNEL_TAG)
# A reset reported by a user through /dev/kmsg: a syslog daemon takes the word before the colon for its
# program.
_REPORTED_LINE = re.compile(_STAMP + rb"\s*\S+\s+gpudiag(?:\[\d+\])?: (?P<text>.* reset\b.*)")


class Place(Protocol):
    """One place where the kernel's lines are kept."""

    name: str  # its path, without the first slash
    complete: bool  # after its chunks were read: whether they reach back to the boot

    def chunks(self) -> Iterator[bytes]:
        """Whole lines, the newest chunk first; in a chunk the oldest line comes first.

        Raises:
            OSError: the place cannot be read.
        """

    def parse(self, line: bytes) -> tuple[float, bytes] | None:
        """The time of a kernel line, in seconds since 1970, and its text; None for another program's line."""

    def stamp(self, line: bytes) -> float | None:
        """The time of any program's line, in seconds since 1970; None where it has none."""


def places(root: Path, boot_seconds: float) -> Iterator[Place]:
    """Each possible place, the most current first; a file is followed by its rotated predecessors."""
    yield Ring(root / RING, boot_seconds)
    for name in _FILES:
        for path in _rotated(root / name, boot_seconds):
            yield Syslog(path, os.fspath(path.relative_to(root)))
    if root == Path("/"):
        yield Journal()


@dataclass(slots=True)
class Ring:
    """/dev/kmsg, or a file of its records."""

    path: Path
    boot_seconds: float
    name: str = RING
    complete: bool = False

    def chunks(self) -> Iterator[bytes]:
        """Whole records, the newest chunk first."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not S_ISCHR(os.fstat(descriptor).st_mode):
                yield from self._noting_first(backwards(file))
                return
            chunks = _whole_ring(descriptor)
        yield from self._noting_first(reversed(chunks))

    def _noting_first(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks; sets `complete` by the oldest record, whose number is 0 if none was overwritten."""
        chunk = b""
        for chunk in chunks:
            yield chunk
        first = _KMSG_RECORD.match(chunk)
        self.complete = first is not None and int(first["sequence"]) == 0

    def parse(self, line: bytes) -> tuple[float, bytes] | None:
        """A record's time, in seconds since 1970, and its text, which may have several lines."""
        match = _KMSG_RECORD.match(line)
        if match is None:  # a line that starts with a space is the dictionary of the record above it
            return None
        text = match["text"]
        if b"\\x" in text:
            text = _ESCAPE.sub(lambda escape: bytes((int(escape[1], 16),)), text)
        return self.boot_seconds + int(match["microseconds"]) / 1e6, text

    def stamp(self, line: bytes) -> float | None:
        """The record's time, in seconds since 1970."""
        parsed = self.parse(line)
        return None if parsed is None else parsed[0]


class _Tagged:
    """What a syslog daemon or journalctl wrote: each line with its time and the program that it came from."""

    def __init__(self, written_until: float) -> None:
        self._written_until = written_until
        self._hours: dict[str, float] = {}

    def parse(self, line: bytes) -> tuple[float, bytes] | None:
        """Time and text of the kernel's own line; None for other programs, which may quote the kernel."""
        match = _KERNEL_LINE.match(line)
        if match is not None:
            return self._seconds(match), match["text"]
        reported = _REPORTED_LINE.match(line)
        return None if reported is None else (self._seconds(reported), b"gpudiag: " + reported["text"])

    def stamp(self, line: bytes) -> float | None:
        """The time of any program's line, in seconds since 1970."""
        match = _ANY_LINE.match(line)
        return None if match is None else self._seconds(match)

    def _seconds(self, match: re.Match[bytes]) -> float:
        if match["unix"]:
            return float(match["unix"])
        if match["bsd"]:
            return self._bsd(match["bsd"].decode())
        try:
            return parse_iso_time(match["iso"].decode().replace(",", ".")).timestamp()
        except ValueError:
            return self._written_until

    def _bsd(self, stamp: str) -> float:
        """Seconds since 1970 for a local stamp without a year: the latest year that is not in the future."""
        hour, minutes, seconds = stamp.split(":")
        if hour not in self._hours:
            self._hours[hour] = self._begin_of(hour)
        return self._hours[hour] + int(minutes) * 60 + int(seconds)

    def _begin_of(self, hour: str) -> float:
        latest = datetime.fromtimestamp(self._written_until) + timedelta(days=1)
        for year in range(latest.year, latest.year - 5, -1):  # 29 February needs a leap year
            try:
                moment = datetime.strptime(f"{year} {hour}", "%Y %b %d %H")
            except ValueError:
                continue
            if moment <= latest:
                return moment.timestamp()
        return self._written_until


class Syslog(_Tagged):
    """A file that a syslog daemon wrote, or one that was rotated.

    Any user can write into it in the kernel's name (`logger -t kernel`): what settles a fault is not believed
    here.
    """

    def __init__(self, path: Path, name: str) -> None:
        """The file at `path`."""
        super().__init__(path.stat().st_mtime)
        self.path = path
        self.name = name
        self.complete = False

    def parse(self, line: bytes) -> tuple[float, bytes] | None:
        """Time and text of the kernel's own line; None for others, and for a line that reports a restart."""
        parsed = super().parse(line)
        restarts = parsed is not None and reports_restart(parsed[1].decode(errors="replace"))
        return None if restarts else parsed

    def chunks(self) -> Iterator[bytes]:
        """Whole lines, the newest chunk first."""
        if self.path.suffix == ".gz":
            import gzip  # late: only a log that was rotated twice since the boot needs it
            import io

            with gzip.open(self.path) as packed:
                yield from backwards(io.BytesIO(packed.read(MAX_BYTES)))
            return
        with self.path.open("rb") as file:
            yield from backwards(file)


class Journal(_Tagged):
    """The kernel's lines of this boot in systemd's journal."""

    name = JOURNAL

    def __init__(self) -> None:
        """The journal of this machine."""
        super().__init__(time())
        self.complete = False

    def chunks(self) -> Iterator[bytes]:
        """Whole lines, the newest chunk first."""
        import subprocess  # late: only a machine with neither /dev/kmsg nor a syslog file needs it

        with subprocess.Popen(
            _JOURNAL_COMMAND,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, os.getpid()),
        ) as journal:
            assert journal.stdout is not None  # noqa: S101 - asked for above
            try:
                yield from _newest_first(journal.stdout)
            finally:
                journal.kill()  # we may have stopped before its end
        self.complete = True


def _newest_first(stream: IO[bytes]) -> Iterator[bytes]:
    rest, empty = b"", True
    while data := stream.read(CHUNK_BYTES):
        empty = False
        *lines, rest = (rest + data).split(b"\n")
        yield b"\n".join(reversed(lines))
    if rest:
        yield rest
    if empty:
        raise PermissionError(errno.EACCES, "the journal shows this user no kernel lines")


def backwards(file: IO[bytes]) -> Iterator[bytes]:
    """The whole lines of a file in chunks, the last chunk first."""
    position = file.seek(0, os.SEEK_END)
    stop = max(0, position - MAX_BYTES)
    rest = b""  # the end of a line that begins in the chunk before
    while position > stop:
        size = min(CHUNK_BYTES, position - stop)
        position -= size
        file.seek(position)
        data = file.read(size) + rest
        begin = data.find(b"\n") + 1 if position else 0
        rest, data = data[:begin], data[begin:]
        if data:
            yield data


def _whole_ring(descriptor: int) -> list[bytes]:
    """Every record that the ring holds, in chunks, oldest first."""
    chunks: deque[bytes] = deque(maxlen=MAX_BYTES // CHUNK_BYTES)
    records: list[bytes] = []
    size = 0
    for _ in range(MAX_RECORDS):
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:  # that was the last one
            break
        except BrokenPipeError:  # overwritten while we read; the next read goes on with the oldest left
            continue
        if not record:
            break
        records.append(record)
        size += len(record)
        if size >= CHUNK_BYTES:
            chunks.append(b"".join(records))
            records, size = [], 0
    chunks.append(b"".join(records))
    return [chunk for chunk in chunks if chunk]


def _rotated(path: Path, boot_seconds: float) -> Iterator[Path]:
    """The file, then those rotated from it since the boot, newest first."""
    if path.exists():
        yield path
    try:
        names = os.listdir(path.parent)
    except OSError:
        return
    older = []
    for name in names:
        if re.fullmatch(re.escape(path.name) + r"(?:\.\d+|-\d{8}(?:-?\d+)?)(?:\.gz)?", name):
            older.append((os.stat(path.parent / name).st_mtime, path.parent / name))
    yield from (found for written, found in sorted(older, reverse=True) if written >= boot_seconds)
