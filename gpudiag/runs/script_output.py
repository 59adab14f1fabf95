"""What a script's ranks print: shown as it comes, and kept where a library explains in it what went wrong."""

import fcntl
import os
import re
import sys
import termios
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# What gloo, NCCL, CUDA and glibc write about a failure of theirs before the process ends, or instead of an exception.
_EXPLAINS = re.compile(
    r"enforce fail|Received data size|^what\(\): |NCCL WARN|ncclInternalError|ncclSystemError"
    r"|Watchdog caught collective|CUDA error|device-side assert|free\(\): |malloc\(\): |double free"
    r"|corrupted size|stack smashing|Bus error|out of shared memory|No space left on device|symbol lookup error"
)
# What a rank prints because another one is gone.
_ECHO = re.compile(r"Connection (closed|reset)|Broken pipe|remote worker crashing", re.IGNORECASE)
_LINES_AT_MOST = 4
_CHARACTERS_AT_MOST = 400
_TAIL_BYTES = 256 * 1024
_REST_SECONDS = 1.0  # a thread of this process reads it; only a starved machine needs as long


@dataclass
class ScriptOutput:
    """The ranks' output: `descriptor` is what they write to."""

    descriptor: int
    _chunks: deque[bytes] = field(default_factory=deque)
    _kept: int = 0

    def take(self, chunk: bytes) -> None:
        """Keep the end of what came."""
        self._chunks.append(chunk)
        self._kept += len(chunk)
        while self._kept > _TAIL_BYTES and len(self._chunks) > 1:
            self._kept -= len(self._chunks.popleft())

    def explanations(self) -> tuple[str, ...]:
        """The lines in which a library says what went wrong, each once, the first few."""
        self._await_rest()
        return find_explanations(b"".join(self._chunks).decode(errors="replace"))

    def _await_rest(self) -> None:
        """Let what a rank wrote before it ended be read: it is in the pipe before the rank is gone."""
        deadline = time.monotonic() + _REST_SECONDS
        while self._unread() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _unread(self) -> bool:
        unread = array("i", [0])
        try:
            fcntl.ioctl(self.descriptor, termios.FIONREAD, unread)
        except OSError:  # closed: all has been read
            return False
        return unread[0] > 0


def find_explanations(text: str) -> tuple[str, ...]:
    """The lines of an output in which a library says what went wrong."""
    lines = (line.strip()[:_CHARACTERS_AT_MOST] for line in text.splitlines())
    telling = (line for line in lines if _EXPLAINS.search(line) and not _ECHO.search(line))
    return tuple(dict.fromkeys(line.removeprefix("what():").strip() for line in telling))[:_LINES_AT_MOST]


@contextmanager
def show_output() -> Iterator[ScriptOutput]:
    """A descriptor for ranks to write to; what comes is shown on standard error as it comes."""
    reading, writing = os.pipe()
    output = ScriptOutput(writing)

    def show() -> None:
        while chunk := os.read(reading, 65536):
            output.take(chunk)
            sys.stderr.buffer.write(chunk)
            sys.stderr.flush()

    shower = threading.Thread(target=show, name="gpudiag-script-output", daemon=True)
    shower.start()
    try:
        yield output
    finally:
        os.close(writing)
        shower.join(5.0)  # a process that the script left behind may still hold the pipe
        if not shower.is_alive():
            os.close(reading)
