"""The lines of a log, unpacked if compressed; or one sentence on why it cannot be read."""

import bz2
import gzip
import lzma
import os
import re
import stat
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast, overload

HEAD_BYTES = 1 << 30  # read whole; about 40 seconds
TAIL_BYTES = 64 << 20  # of the rest, only the end is kept
MAX_LINE_BYTES = 20_000  # of one line, half from each end: a progress bar may be one line of megabytes
MAX_FILES = 10_000  # of one folder
MAX_DUMP_BYTES = 256 << 20

_CHUNK_BYTES = 1 << 20
_SNIFFED_BYTES = 1 << 16
_HEAD_BYTES = 1 << 14
_TEXT_CONTROLS = b"\t\n\r\x08\x0c\x1b\x07"
_CONTROLS = bytes(number for number in (*range(32), 127) if number not in _TEXT_CONTROLS)
_MAX_CONTROL_SHARE = 0.05
_NO_LOGS = frozenset(
    [
        ".bin",
        ".c",
        ".cc",
        ".cfg",
        ".conf",
        ".cpp",
        ".cu",
        ".cuh",
        ".csv",
        ".gif",
        ".h",
        ".html",
        ".ini",
        ".ipynb",
        ".jpeg",
        ".jpg",
        ".js",
        ".json",
        ".lock",
        ".md",
        ".npy",
        ".npz",
        ".onnx",
        ".parquet",
        ".pdf",
        ".pickle",
        ".pkl",
        ".png",
        ".pt",
        ".pth",
        ".py",
        ".pyc",
        ".safetensors",
        ".sh",
        ".so",
        ".sqlite",
        ".tar",
        ".toml",
        ".ts",
        ".tsx",
        ".whl",
        ".yaml",
        ".yml",
        ".zip",
    ]
)
# What the beginning of a file shows to be a log, whatever its name ends in: a flight recorder's dump,
# torchrun's error file of a rank, records of a runtime or a logger.
_MAY_BE_LOGS = frozenset({".json", ".pickle", ".pkl", ".bin", ".csv", ".yaml", ".yml", ".md", ".html"})
_NAMED_LOGS = re.compile(
    r"(?:^|[^a-z])(?:log|logs|slurm|sacct|dmesg|events?|describe|error|stderr|stdout|nccl_trace|fr_trace|"
    r"flight)",
    re.IGNORECASE,
)
_PY_SPY = re.compile(rb"Process \d+: [^\n]*\nPython v\d")
_LOG_HEADS = (
    b'{"message"',
    b'{"log"',
    b'{"time"',
    b'{"level"',
    b'{"ts"',
    b'{"timestamp"',
    b'{"asctime"',
    b'{"severity"',
)


class LogRefused(Exception):
    """Why a file cannot be read as a log, in one sentence."""


@dataclass(slots=True)
class LogLines:
    """The lines of one log with their numbers from 1, read piece by piece."""

    stream: BinaryIO
    head_bytes: int = HEAD_BYTES
    tail_bytes: int = TAIL_BYTES
    lines_read: int = 0
    bytes_left_out: int = 0
    ends_within_line: bool = False  # its last line has no end
    is_damaged: bool = False  # only a part of it could be unpacked

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Each line with its number; what lies between the head and the tail is left out.

        Raises:
            LogRefused: the stream is compressed and damaged before anything could be read.
        """
        part = b""
        bytes_read = 0
        for chunk in self._chunks():
            bytes_read += len(chunk)
            *lines, part = (part + chunk).split(b"\n")
            part = _cut(part)
            yield from self._number(lines)
            if bytes_read >= self.head_bytes:
                yield from self._number([part])
                self.lines_read -= 1  # the line goes on in the part left out
                yield from self._tail()
                return
        if part:
            self.ends_within_line = b"\r" not in part
            yield from self._number([part])

    def _number(self, lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
        for line in lines:
            self.lines_read += 1
            yield self.lines_read, line if len(line) <= MAX_LINE_BYTES else _cut(line)

    def _tail(self) -> Iterator[tuple[int, bytes]]:
        kept: deque[bytes] = deque()
        kept_bytes = 0
        for chunk in self._chunks():
            kept.append(chunk)
            kept_bytes += len(chunk)
            while kept_bytes - len(kept[0]) >= self.tail_bytes:
                dropped = kept.popleft()
                kept_bytes -= len(dropped)
                self.bytes_left_out += len(dropped)
                self.lines_read += dropped.count(b"\n")
        lines = b"".join(kept).removesuffix(b"\n").split(b"\n") if kept else []
        yield from self._number(lines)

    def _chunks(self) -> Iterator[bytes]:
        while True:
            try:
                chunk = self.stream.read(_CHUNK_BYTES)
            except (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:
                self.is_damaged = True
                if not self.lines_read:
                    raise LogRefused(f"it is damaged: {error}") from error
                return  # the part that could be unpacked is used
            if not chunk:
                return
            yield chunk


@overload
def open_lines(stream: BinaryIO, *, head_bytes: int = ..., tail_bytes: int = ...) -> LogLines: ...


@overload
def open_lines(stream: BinaryIO, *, is_dump: Callable[[bytes], bool]) -> LogLines | bytes: ...


def open_lines(
    stream: BinaryIO,
    *,
    head_bytes: int = HEAD_BYTES,
    tail_bytes: int = TAIL_BYTES,
    is_dump: Callable[[bytes], bool] | None = None,
) -> LogLines | bytes:
    """The lines of a log, unpacked where it is compressed.

    Where `is_dump` knows its beginning, they are all of its bytes.

    Raises:
        LogRefused: it is binary, an archive, or compressed in a way whose library is not installed.
    """
    unpacked = _unpack(_Peekable(stream))
    start = unpacked.peek(_SNIFFED_BYTES)
    if is_dump is not None and is_dump(start):
        return _read_dump(unpacked)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = unpacked.read(head_bytes).decode("utf-16", errors="replace")
        return LogLines(BytesIO(text.encode()), head_bytes, tail_bytes)
    _refuse_binary(start)
    return LogLines(cast(BinaryIO, unpacked), head_bytes, tail_bytes)


def _read_dump(stream: "_Peekable") -> bytes:
    parts = []
    while part := stream.read(_CHUNK_BYTES):
        parts.append(part)
        if len(parts) * _CHUNK_BYTES > MAX_DUMP_BYTES:
            raise LogRefused(f"it is a dump of more than {MAX_DUMP_BYTES >> 20} MiB")
    return b"".join(parts)


def _is_log_by_head(path: Path, is_dump: Callable[[bytes], bool]) -> bool:
    if _NAMED_LOGS.search(path.name):
        return True
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.startswith(_LOG_HEADS) or is_dump(head)


def log_files(folder: Path, is_dump: Callable[[bytes], bool]) -> tuple[list[Path], int]:
    """The files of a folder that may be logs, by name, and how many others there are.

    Hidden ones are skipped. A folder in it that cannot be read is among the files: opening it gives the
    reason.
    """
    found: list[Path] = []
    others = 0
    for path, is_file in sorted(_walk(folder)):
        if not is_file:
            found.append(path)
            continue
        suffix = path.suffix.lower()
        is_log = suffix not in _NO_LOGS or (suffix in _MAY_BE_LOGS and _is_log_by_head(path, is_dump))
        if is_log and len(found) < MAX_FILES:
            found.append(path)
        else:
            others += 1
    return found, others


def _walk(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Each file below a folder with True, and with False each folder that cannot be read.

    What is hidden is left out.
    """
    unread: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=lambda error: unread.append(Path(error.filename))):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and _may_be_file(Path(place, name)):
                yield Path(place, name), True
    for path in unread:
        yield path, False


def _may_be_file(path: Path) -> bool:
    """Whether it is a regular file, or one of which this user may not even learn that."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


class _Peekable:
    """A stream whose beginning can be looked at."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ahead = b""

    def peek(self, size: int) -> bytes:
        """Up to `size` bytes, which the next `read` gives again."""
        while len(self._ahead) < size:
            more = self._read_inner(size - len(self._ahead))
            if not more:
                break
            self._ahead += more
        return self._ahead[:size]

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        if not self._ahead:
            return bytes(self._stream.read(size))
        if size < 0 or size >= len(self._ahead):
            taken, self._ahead = self._ahead, b""
            return taken
        taken, self._ahead = self._ahead[:size], self._ahead[size:]
        return taken

    def readable(self) -> bool:
        """True; unpackers ask for it."""
        return True

    def _read_inner(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:
            if self._ahead:
                return b""
            raise LogRefused(f"it is damaged: {error}") from error


def _unpack(stream: _Peekable) -> _Peekable:
    start = stream.peek(6)
    source = cast(BinaryIO, stream)
    if start.startswith(b"\x1f\x8b"):
        return _Peekable(gzip.GzipFile(fileobj=source))
    if start.startswith(b"BZh"):
        return _Peekable(bz2.BZ2File(source))
    if start.startswith(b"\xfd7zXZ\x00"):
        return _Peekable(lzma.LZMAFile(source))
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return _Peekable(_open_zstd(source))
    return stream


def _open_zstd(source: BinaryIO) -> Any:
    """A stream that unpacks zstd, by the standard library (Python 3.14) or one that is installed."""
    try:
        return import_module("compression.zstd").ZstdFile(source)
    except ImportError:
        pass
    for name, opener in (("zstandard", "ZstdDecompressor"), ("pyzstd", "ZstdFile")):
        try:
            made = getattr(import_module(name), opener)
        except ImportError:
            continue
        return made().stream_reader(source) if opener == "ZstdDecompressor" else made(source)
    raise LogRefused(
        "it is compressed with zstd, and no library for it is installed: unpack it with `zstd -d`"
    )


def _refuse_binary(start: bytes) -> None:
    kinds = (
        (b"PK\x03\x04", "it is a zip archive (or a torch checkpoint): unpack it and give the logs in it"),
        (b"7z\xbc\xaf\x27\x1c", "it is a 7z archive: unpack it and give the logs in it"),
        (b"\x7fELF", "it is a program or a core dump, not a log"),
        (b"LPKSHHRH", "it is a journal of systemd: give `journalctl --file FILE` on standard input"),
    )
    for magic, sentence in kinds:
        if start.startswith(magic):
            raise LogRefused(sentence)
    if _PY_SPY.match(start):
        raise LogRefused(
            "it is a dump of py-spy, not a log: `gpudiag hang` reads and"
            " compares the stacks of a job that runs"
        )
    if start[257:262] == b"ustar":
        raise LogRefused("it is a tar archive: unpack it with `tar xf` and give the folder")
    controls = len(start) - len(start.translate(None, _CONTROLS))
    if start and controls / len(start) > _MAX_CONTROL_SHARE:
        raise LogRefused("it is a binary file, not a log")


def _cut(line: bytes) -> bytes:
    half = MAX_LINE_BYTES // 2
    return line if len(line) <= 2 * half else line[:half] + line[-half:]
