"""What the ranks of a user's script print: shown as it comes, and searched for a library's explanation."""

import fcntl
import io
import os
import re
import select
import sys
import termios
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpudiag.model.untrusted_text import shorten_text

# What gloo, NCCL, CUDA and glibc print about their own failure before the process ends, or with no exception.
_EXPLAINS = re.compile(
    r"enforce fail|Received data size|^what\(\): |NCCL WARN|ncclInternalError|ncclSystemError"
    r"|Watchdog caught collective|CUDA error|device-side assert|free\(\): |malloc\(\): |double free"
    r"|corrupted size|stack smashing|Bus error|out of shared memory|No space left on device|"
    r"symbol lookup error"
)
# What a rank prints because another one is gone.
_ECHO = re.compile(r"Connection (closed|reset)|Broken pipe|remote worker crashing", re.IGNORECASE)
_LINES_AT_MOST = 4
_CHARACTERS_AT_MOST = 400
_TAIL_BYTES = 256 * 1024
_REST_SECONDS = 1.0  # a thread of this process reads it; only a starved machine needs as long

# What a pipe takes at once, where it takes anything (pipe(7), PIPE_BUF).
_AT_ONCE_BYTES = 4096
_WAIT_SECONDS = 0.1
# How long the rest of the output may wait for its reader once the run is over.
_OVER_SECONDS = 1.0


@dataclass
class ScriptOutput:
    """The ranks' output: `descriptor` is what they write to."""

    descriptor: int
    _chunks: deque[bytes] = field(default_factory=deque)
    _kept: int = 0

    def add(self, chunk: bytes) -> None:
        """Add a chunk of output; only the end of all output is kept."""
        self._chunks.append(chunk)
        self._kept += len(chunk)
        while self._kept > _TAIL_BYTES and len(self._chunks) > 1:
            self._kept -= len(self._chunks.popleft())

    def explanations(self) -> tuple[str, ...]:
        """The lines in which a library explains what went wrong, each once, the first few."""
        self._await_rest()
        return find_explanations(b"".join(self._chunks).decode(errors="replace"))

    def _await_rest(self) -> None:
        """Wait until what ranks wrote before they ended is read: it is in the pipe by then."""
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
    """The lines of an output in which a library explains what went wrong."""
    lines = (shorten_text(line.strip(), _CHARACTERS_AT_MOST) for line in text.splitlines())
    explaining = (line for line in lines if _EXPLAINS.search(line) and not _ECHO.search(line))
    return tuple(dict.fromkeys(line.removeprefix("what():").strip() for line in explaining))[:_LINES_AT_MOST]


@contextmanager
def show_output() -> Iterator[ScriptOutput]:
    """A descriptor for ranks to write to; what comes is shown on standard error as it comes.

    Where nobody reads standard error the ranks wait, and this process does not, which could not even end.
    """
    reading, writing = os.pipe()
    output = ScriptOutput(writing)
    over = threading.Event()

    def show() -> None:
        sys.stderr.flush()
        while chunk := os.read(reading, 65536):
            output.add(chunk)
            if not _write_while_read(chunk, over):
                break

    shower = threading.Thread(target=show, name="gpudiag-script-output", daemon=True)
    shower.start()
    try:
        yield output
    finally:
        os.close(writing)
        over.set()
        shower.join(5.0)  # a process that the script left behind may still hold the pipe
        if not shower.is_alive():
            os.close(reading)


def _write_while_read(chunk: bytes, over: threading.Event) -> bool:
    """Whether all of the chunk was written to standard error; not after the run without a reader."""
    try:
        descriptor = sys.stderr.fileno()
    except (io.UnsupportedOperation, ValueError):  # it is no file: a test took its place
        sys.stderr.buffer.write(chunk)
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    given_up_at: float | None = None
    while chunk:
        if poll.poll(_WAIT_SECONDS * 1000):
            chunk = chunk[os.write(descriptor, chunk[:_AT_ONCE_BYTES]) :]
        elif over.is_set():
            given_up_at = given_up_at or time.monotonic() + _OVER_SECONDS
            if time.monotonic() > given_up_at:
                return False
    return True
