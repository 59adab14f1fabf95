"""A client of NCCL's RAS subsystem: each NCCL job since 2.24 listens on localhost:28028, or at NCCL_RAS_ADDR.

The protocol is text: a line with the protocol's version, then commands that are answered with OK or an error,
then STATUS, whose answer ends with the connection. All processes of a machine share the port, of whatever
job, and the kernel picks the one that answers; so where the caller knows the job's processes, it is asked
again until one of them does.
"""

import socket
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from time import monotonic, sleep

from gpudiag.model.job_state import RasLook, RasLooks
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.job.ras_answers import MAX_ANSWER_BYTES, RasRefused, parse_ras_answer

DEFAULT_ADDRESS = "localhost:28028"
ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
ENABLE_VARIABLE = "NCCL_RAS_ENABLE"  # 0 switches RAS off
# How long NCCL may wait for its other processes; its own default is 5 s, of which a look has no time.
COLLECTION_SECONDS = 1
APART_SECONDS = 1.0
DEADLINE_SECONDS = 4.0
_MOST_TRIES = 32
_TRY_SECONDS = (
    1.5  # for one answer: a listener whose process is stopped accepts the connection, and never answers
)
_PROTOCOL = b"CLIENT PROTOCOL 2\n"
_MAX_LINE_BYTES = 1024
_CHUNK_BYTES = 1 << 16


def ras_address(environment: dict[str, str]) -> str | None:
    """Where a rank with these variables has its RAS; None where they switch it off."""
    if environment.get(ENABLE_VARIABLE, "").strip() == "0":
        return None
    return environment.get(ADDRESS_VARIABLE, "").strip() or DEFAULT_ADDRESS


def read_ras(
    address: str = DEFAULT_ADDRESS,
    *,
    pids: frozenset[int] = frozenset(),
    is_whole: bool = False,
    apart_seconds: float = APART_SECONDS,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> Reading[RasLooks]:
    """Two answers of the RAS at this address, begun `apart_seconds` apart, or why there are none.

    With `pids`, JSON that names processes and none of these is of another job, and is not returned; so is a
    text, which names a few of any machine, where `is_whole`: the job has no other processes. A first answer
    without a second is returned alone.
    """
    began = monotonic()
    client = _Client(address, pids, is_whole, began, began + deadline_seconds)
    try:
        first = client.look()
    except _Failed as failed:
        return Missing(failed.reason, f"{failed} (NCCL RAS at {address})")
    looks = [first]
    sleep(max(0.0, min(began + apart_seconds, client.deadline) - monotonic()))
    with suppress(_Failed):
        looks.append(client.look())
    return RasLooks(address, tuple(looks))


class _Failed(Exception):
    """Why RAS gave no look."""

    def __init__(self, reason: MissingReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(slots=True)
class _Client:
    """Asks one address until its deadline."""

    address: str
    pids: frozenset[int]
    is_whole: bool
    began: float
    deadline: float
    speaks_json: bool = True
    until: float = 0.0  # of the try under way

    def look(self) -> RasLook:
        """One answer, of a process of the wanted job.

        Which listener gets a connection, the kernel decides.
        """
        for _ in range(_MOST_TRIES):
            at_seconds = monotonic() - self.began
            self.until = min(self.deadline, monotonic() + _TRY_SECONDS)
            try:
                answer = self._ask()
            except _Failed as failed:
                if failed.reason is MissingReason.TIMED_OUT and monotonic() < self.deadline:
                    continue
                raise
            try:
                look = parse_ras_answer(answer, at_seconds=at_seconds)
            except RasRefused as refused:
                raise _Failed(MissingReason.ERROR, f"its answer is not read: {refused}") from None
            if self._is_wanted(look):
                return look
        raise _Failed(MissingReason.SOURCE_ABSENT, "the processes that answer are of another job")

    def _is_wanted(self, look: RasLook) -> bool:
        """Whether the answer is of the wanted job; a text names a few processes, of any machine."""
        if not look.is_complete and not self.is_whole:
            return True
        named = {rank.pid for one in look.communicators for rank in one.ranks if rank.pid is not None}
        return not self.pids or not named or not self.pids.isdisjoint(named)

    def _ask(self) -> bytes:
        with self._connect() as connection:
            self._send(connection, _PROTOCOL)
            greeting = self._line(connection)
            if not greeting.upper().startswith(b"SERVER PROTOCOL"):
                raise _Failed(MissingReason.ERROR, f"the server there is no RAS: it sent {_shown(greeting)}")
            self._send(connection, f"TIMEOUT {COLLECTION_SECONDS}\n".encode())
            self._line(connection)
            if self.speaks_json:
                self._send(connection, b"SET FORMAT json\n")
                self.speaks_json = self._line(connection).strip().upper() == b"OK"
            self._send(connection, b"STATUS\n" if self.speaks_json else b"VERBOSE STATUS\n")
            return self._rest(connection)

    def _connect(self) -> socket.socket:
        failure = "it could not be reached"
        for family, place in self._places():
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.settimeout(self._left())
                connection.connect(place)
            except OSError as error:
                connection.close()
                failure = error.strerror or str(error)
            else:
                return connection
        raise _Failed(MissingReason.SOURCE_ABSENT, f"nothing answers there: {failure}")

    def _places(self) -> list[tuple[int, tuple[str, int]]]:
        """The addresses to try; a name is looked up beside, for a name server may not answer."""
        host, separator, port = self.address.rpartition(":")
        host = host.strip("[]")
        if not separator or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
            raise _Failed(MissingReason.ERROR, f"{ADDRESS_VARIABLE} is no host:port")
        found: list[tuple[int, tuple[str, int]]] = []

        def look_up() -> None:
            with suppress(OSError, UnicodeError):
                for family, _, _, _, place in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM):
                    found.append((family, (str(place[0]), int(place[1]))))

        thread = Thread(target=look_up, daemon=True)
        thread.start()
        thread.join(self._left())
        if not found:
            raise _Failed(MissingReason.ERROR, f"the name {host} was not found")
        return found

    def _left(self) -> float:
        left = self.until - monotonic()
        if left <= 0:
            raise _Failed(MissingReason.TIMED_OUT, "it did not answer in time")
        return left

    def _send(self, connection: socket.socket, data: bytes) -> None:
        try:
            connection.settimeout(self._left())
            connection.sendall(data)
        except OSError as error:
            raise self._broken(error) from None

    def _receive(self, connection: socket.socket) -> bytes:
        try:
            connection.settimeout(self._left())
            return connection.recv(_CHUNK_BYTES)
        except OSError as error:
            raise self._broken(error) from None

    def _broken(self, error: OSError) -> _Failed:
        if isinstance(error, TimeoutError):
            return _Failed(MissingReason.TIMED_OUT, "it accepted the connection but did not answer in time")
        return _Failed(MissingReason.ERROR, f"it broke the connection: {error.strerror or error}")

    def _line(self, connection: socket.socket) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            part = self._receive(connection)
            if not part:
                raise _Failed(MissingReason.ERROR, "it closed the connection before it answered")
            line += part
            if len(line) > _MAX_LINE_BYTES:
                raise _Failed(MissingReason.ERROR, f"the server there is no RAS: it sent {_shown(line)}")
        return line

    def _rest(self, connection: socket.socket) -> bytes:
        answer = bytearray()
        while part := self._receive(connection):
            answer += part
            if len(answer) > MAX_ANSWER_BYTES:
                raise _Failed(MissingReason.ERROR, f"its answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
        if not answer:
            raise _Failed(MissingReason.ERROR, "it closed the connection before it answered")
        return bytes(answer)


def _shown(line: bytes) -> str:
    return repr(line[:40].decode("ascii", "replace"))
