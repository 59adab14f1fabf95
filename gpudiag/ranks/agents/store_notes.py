"""Notes that agents leave in the store where the ranks meet, for those who reach that port alone.

Rank 0's agent writes its host's name there; an agent that reaches the store and none of that agent's ports
knows that a firewall is between, and leaves a note. The words are those of torch's TCPStore
(TCPStoreBackend.hpp).
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

_GREETING = struct.pack("<BI", 0, 0x3C85F7CE)  # VALIDATE with its magic number
_SET, _GET, _CHECK = 1, 3, 5
_READY = 0
_SECONDS = 1.0
_AGAIN_SECONDS = 0.5
_MOST_BYTES = 4096
_HOST, _ANY = "host", "any"


class StoreNotes:
    """The notes of one run in the store at an address."""

    def __init__(self, address: tuple[str, int], key: str) -> None:
        """The run's `key` is part of the names of its notes."""
        self._address = address
        self._prefix = f"gpudiag/{key[:32]}/"

    def read_host(self) -> str | None:
        """The name of rank 0's host; None where the store is not there, or is not that of this run."""
        return self._read((_HOST,)).get(_HOST)

    def write_host(self, host: str) -> bool:
        """Whether the name of rank 0's host is in the store now."""
        return self._write({_HOST: host})

    def write(self, rank: int, words: str) -> bool:
        """Whether this rank's note is in the store now."""
        return self._write({str(rank): words, _ANY: "yes"})

    def read(self, ranks: Sequence[int]) -> dict[int, str]:
        """The notes of these ranks that are there."""
        if not self._read((_ANY,)):
            return {}
        return {int(name): note for name, note in self._read(tuple(map(str, ranks))).items()}

    def _read(self, names: Sequence[str]) -> dict[str, str]:
        """The values of those names that the store has."""
        found: dict[str, str] = {}
        with contextlib.suppress(OSError, UnicodeDecodeError), self._connected() as store:
            for name in names:
                store.sendall(bytes([_CHECK]) + struct.pack("<Q", 1) + self._text(name))
                if _receive(store, 1)[0] != _READY:
                    continue
                store.sendall(bytes([_GET]) + self._text(name))
                (size,) = struct.unpack("<Q", _receive(store, 8))
                if size > _MOST_BYTES:
                    break
                found[name] = _receive(store, size).decode()
        return found

    def _write(self, values: Mapping[str, str]) -> bool:
        """Whether the store has these values now."""
        with contextlib.suppress(OSError), self._connected() as store:
            for name, value in values.items():
                data = value.encode()
                store.sendall(bytes([_SET]) + self._text(name) + struct.pack("<Q", len(data)) + data)
                store.sendall(bytes([_CHECK]) + struct.pack("<Q", 1) + self._text(name))
                if _receive(store, 1)[0] != _READY:
                    return False
            return True
        return False

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(self._address, timeout=_SECONDS) as store:
            store.sendall(_GREETING)
            yield store

    def _text(self, name: str) -> bytes:
        data = (self._prefix + name).encode()
        return struct.pack("<Q", len(data)) + data


def _receive(store: socket.socket, size: int) -> bytes:
    """So many bytes of the store's answer. Raises OSError: they do not come."""
    data = b""
    while len(data) < size:
        chunk = store.recv(size - len(data))
        if not chunk:
            raise OSError("the store has closed the connection")
        data += chunk
    return data


class StoreWatch:
    """Rank 0's agent at the store: writes who it is, and reads who reaches the store alone."""

    def __init__(self, notes: StoreNotes, host: str, ranks: Sequence[int]) -> None:
        """Start, in a thread of its own; `ranks` are those of other agents."""
        self._notes = notes
        self._host = host
        self._ranks = ranks
        self._over = threading.Event()
        self._found: dict[int, str] = {}
        self._first_at: float | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def notes(self) -> Mapping[int, str]:
        """What each rank has found that reaches the store alone."""
        return self._found

    @property
    def waited_seconds(self) -> float:
        """Since the first note was read; 0 before."""
        return 0.0 if self._first_at is None else time.monotonic() - self._first_at

    def stop(self) -> None:
        """Look no longer: all agents have come, or the run is over."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(_AGAIN_SECONDS) and not self._notes.write_host(self._host):
            pass
        while not self._over.wait(_AGAIN_SECONDS):
            self._found.update(self._notes.read(self._ranks))
            if self._found and self._first_at is None:
                self._first_at = time.monotonic()
