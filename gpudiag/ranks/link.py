"""The line between agents: JSON messages over a socket that is not the process group's.

Agents of one machine meet at unix sockets, one in each agent's run directory, which is named after
the run and the rank; so there is no port to choose, to leave open or to take from somebody.
"""

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SOCKET_NAME = "agent.sock"
_LISTENED_AT_MOST_SECONDS = 0.5  # agents look ten times a second
_SEND_SECONDS = 1.0  # a peer that does not read for so long is hung


class LinkLostError(Exception):
    """The other end is gone, or does not read any more."""


class Link:
    """One connection to another agent, carrying one JSON object per line."""

    def __init__(self, connection: socket.socket) -> None:
        """Use `connection`, which this object closes."""
        self._connection = connection
        self._received = b""
        self._unsendable = False
        self._looked_at = time.monotonic()
        self.unheard_seconds = 0.0  # for how long `receive` has brought nothing

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._connection.fileno()

    def send(self, kind: str, **fields: Any) -> None:
        """Send one message; one that cannot be sent is dropped, and `receive` says that the line is lost.

        Not before it has returned what the other end said last: that may explain its end.
        """
        if self._unsendable:
            return
        self._connection.settimeout(_SEND_SECONDS)
        try:
            self._connection.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\n")
        except OSError:
            self._unsendable = True

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have come since the last call, without waiting.

        Raises:
            LinkLostError: the other end is gone, or has not read for a second, and everything that it
                sent has been returned.
        """
        self._connection.setblocking(False)
        lost = self._unsendable
        try:
            while chunk := self._connection.recv(1 << 16):
                self._received += chunk
            lost = True
        except BlockingIOError:
            pass
        except OSError:
            lost = True
        *lines, self._received = self._received.split(b"\n")
        self._count_silence(bool(lines))
        if lost and not lines:
            raise LinkLostError
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the connection; calling it twice does no harm."""
        self._connection.close()

    def _count_silence(self, heard: bool) -> None:
        """Add the time since the last look, unless this process slept through it: then nobody could be heard."""
        now = time.monotonic()
        gap, self._looked_at = now - self._looked_at, now
        self.unheard_seconds = 0.0 if heard else self.unheard_seconds + min(gap, _LISTENED_AT_MOST_SECONDS)


class Meeting:
    """Where the agents of one run find each other; every agent can be found, so that any can lead."""

    def __init__(self, base: Path, run_key: str, rank: int) -> None:
        """Meet under `base`, the folder with the run directories."""
        self._base = base
        self._key = hashlib.sha256(run_key.encode()).hexdigest()[:16]
        self.rank = rank

    @property
    def label(self) -> str:
        """What the run directory of this agent must be called for the others to find it."""
        return self._label(self.rank)

    def listen(self, directory: Path) -> socket.socket:
        """A socket on which the others can reach this agent, in its run directory."""
        listener = socket.socket(socket.AF_UNIX)
        with _short_path(directory) as path:
            listener.bind(f"{path}/{_SOCKET_NAME}")
        listener.listen(128)
        listener.setblocking(False)
        return listener

    def connect(self, rank: int) -> Link | None:
        """A line to the agent of that rank; None if there is none (yet, or any more)."""
        for directory in self._base.glob(f"run-{self._label(rank)}-*"):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_SEND_SECONDS)
            try:
                with _short_path(directory) as path:
                    connection.connect(f"{path}/{_SOCKET_NAME}")
            except OSError:  # left behind by a dead agent, or not listening yet
                connection.close()
            else:
                return Link(connection)
        return None

    def _label(self, rank: int) -> str:
        return f"{self._key}-{rank}"


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A path to a directory that fits into a socket address, which holds 107 bytes (unix(7))."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
