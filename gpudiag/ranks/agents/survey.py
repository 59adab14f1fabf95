"""Each agent tries the ports of other hosts for itself, at the leader's request."""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from gpudiag.ranks.agents.link import Link
from gpudiag.ranks.agents.messages import RunKey, SurveyRequest, SurveyRow
from gpudiag.ranks.agents.own_addresses import address_towards
from gpudiag.ranks.diagnosis.survey import Answer, Purpose, Target, Try

# The kernel repeats an unanswered SYN after 1 s (RFC 6298): one lost segment is no silence.
_CONNECT_SECONDS = 1.5
_REPLY_SECONDS = 1.0
# By then every agent has answered: it tries all its targets at once.
SURVEY_SECONDS = _CONNECT_SECONDS + _REPLY_SECONDS + 0.4
# By then a survey that was asked for at the same time has ended.
_LISTEN_SECONDS = 2 * SURVEY_SECONDS
# An agent tries so many ports at once at most.
_MOST_TARGETS = 256
_INCOMPLETE = "00:00:00:00:00:00"  # in /proc/net/arp: nobody has the address


class Surveyor:
    """Tries what it is asked for, in a thread of its own, and hands out the answer once it is there."""

    def __init__(self, key: str) -> None:
        """Agents of the run know its `key`."""
        self._key = key
        self._rows: SimpleQueue[SurveyRow] = SimpleQueue()

    def listen(self, ports: Sequence[int]) -> None:
        """Listen on the free ones of these ports for 6 s: then a reset is a firewall's."""
        servers: list[socket.socket] = []
        for port in ports:
            with contextlib.suppress(OSError):  # taken, or not for this user
                servers.append(socket.create_server(("", port)))

        def close() -> None:
            for server in servers:
                server.close()

        timer = threading.Timer(_LISTEN_SECONDS, close)
        timer.daemon = True
        timer.start()

    def start(self, request: SurveyRequest) -> None:
        """Begin to try the targets; the ports to listen on are open when it returns."""
        if request.listen:
            self.listen(request.listen)

        def work() -> None:
            self._rows.put(SurveyRow(request.number, self.try_all(request.targets)))

        threading.Thread(target=work, daemon=True).start()

    def take(self) -> list[SurveyRow]:
        """The answers that are complete, each once."""
        return [self._rows.get() for _ in range(self._rows.qsize())]

    def try_all(self, targets: Sequence[Target]) -> tuple[Try, ...]:
        """What each target answers, within 3 s."""
        found: dict[int, Try] = {}

        def one(place: int, target: Target) -> None:
            found[place] = self._try(target)

        some = targets[:_MOST_TARGETS]
        threads = [
            threading.Thread(target=one, args=(place, target), daemon=True)
            for place, target in enumerate(some)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + SURVEY_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return tuple(found[place] for place in sorted(dict(found)))

    def _try(self, target: Target) -> Try:
        try:
            entries = socket.getaddrinfo(target.address, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            return Try(target, Answer.NO_ADDRESS, words=error.strerror or str(error))
        tries = [self._try_address(target, entry[0], entry[4]) for entry in entries[:2]]
        best = min(tries, key=lambda one: not one.answer.is_open)
        if target.purpose is not Purpose.AGENT or best.answer.is_open:
            return best
        return replace(best, sent_from=address_towards(target.address, target.port))

    def _try_address(self, target: Target, family: int, place: tuple[object, ...]) -> Try:
        address = str(place[0])
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect(place)
        except TimeoutError:
            connection.close()
            return Try(target, Answer.SILENT, address)
        except OSError as error:
            connection.close()
            return Try(target, _answer_of(error.errno or 0, place), address, error.strerror or "")
        if target.purpose not in (Purpose.AGENT, Purpose.PUBLISHED):
            connection.close()
            return Try(target, Answer.ACCEPTS, address)
        link = Link(connection)
        link.send(RunKey(self._key))
        replied = link.await_message(RunKey, _REPLY_SECONDS) == RunKey(self._key)
        link.close()
        return Try(target, Answer.REPLIES if replied else Answer.ACCEPTS, address)


def _answer_of(number: int, place: tuple[object, ...]) -> Answer:
    """What an error of connect(2) means."""
    if number == errno.ECONNREFUSED:
        return Answer.REFUSED
    if number == errno.ETIMEDOUT or _is_unanswered(str(place[0])):
        return Answer.SILENT
    if number in (errno.EACCES, errno.EPERM):
        return Answer.PROHIBITED
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOPROTOOPT) and may_send_to(str(place[0])):
        return Answer.PROHIBITED  # an ICMP message came back
    return Answer.NO_ROUTE


def may_send_to(address: str) -> bool:
    """Whether the kernel has a way there and the neighbour answers: an error is then an ICMP message."""
    try:
        ((family, _, _, _, place), *_) = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
    except OSError:
        return False
    return not _is_unanswered(address)


def _is_unanswered(address: str) -> bool:
    """Whether the neighbour with that address does not answer, which connect(2) reports as no route to it."""
    try:
        lines = Path("/proc/net/arp").read_text().splitlines()[1:]
    except OSError:
        return False
    return any(fields[0] == address and fields[3] == _INCOMPLETE for fields in map(str.split, lines))
