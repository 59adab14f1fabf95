"""Whether the hosts of a run reach each other: every agent answers at its own port, and tries the others'.

The port is ephemeral, as those of NCCL and gloo, so that a firewall that opens the rendezvous port alone
shows. A thread answers, which a busy agent still has. Whether packets of full size pass is tried apart; else
which do.
"""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpudiag.ranks.agents.link import Link, connect_small, line_of
from gpudiag.ranks.agents.messages import PathFound, PathProbe, PathRequest, PathRow, PathTarget, RunKey
from gpudiag.ranks.agents.survey import Surveyor
from gpudiag.ranks.diagnosis.paths import Contact, Paths

# The kernel repeats an unanswered SYN after 1 s (RFC 6298): one lost segment is no cut.
_CONNECT_SECONDS = 1.5
# A process that gets so little of the processor that it does not reply within this is as good as stopped.
_REPLY_SECONDS = 2.0
# TCP sends a lost packet again after 0.2, 0.6 and 1.4 s.
_FULL_SECONDS = 1.6
# Sizes are tried several at once, in two rounds, so that the largest one that passes is known to some ten
# bytes.
_SIZE_SECONDS, _SIZES_AT_ONCE, _SIZE_ROUNDS = 0.8, 12, 2
# The other agent first looks by itself, all its targets at once.
_ROW_SECONDS = _CONNECT_SECONDS + _REPLY_SECONDS + _FULL_SECONDS + _SIZE_ROUNDS * _SIZE_SECONDS + 0.5
# A further look starts so long after the last one; later where that found nothing, and where nothing is
# suspected.
_LOOK_AGAIN_SECONDS, _WHOLE_AGAIN_SECONDS, _IDLE_AGAIN_SECONDS = 1.0, 2.0, 10.0
# Of IPv4 and TCP, with its time stamps.
_HEADER_BYTES = 52
_SMALLEST_BYTES = 100  # of a message that is tried
# An agent asks so many others at most; with more hosts each look covers others.
_MOST_TARGETS = 128
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL)


@dataclass(frozen=True, slots=True)
class HostAgent:
    """An agent that speaks for its host: the first of those there."""

    target: PathTarget
    host: str


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the network, and when it began and ended by CLOCK_MONOTONIC."""

    began: float
    ended: float
    paths: Paths


class PathWatch:
    """Answers other agents of the run for as long as it is open, and looks at the paths to them."""

    def __init__(self, key: str, rank: int) -> None:
        """Answer agents that know the run's `key`, at a port that the kernel chooses.

        Raises:
            OSError: no socket could be made.
        """
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._key = key
        self._rank = rank
        self.surveyor = Surveyor(key)
        self._server = socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=128)
        self.port: int = self._server.getsockname()[1]
        self._looking: threading.Thread | None = None
        self._looks: list[Look] = []  # the last two since `forget`
        self._looked_at = 0.0
        self._passed_bytes: dict[tuple[str, int], int] = {}
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stop answering; a second call does nothing."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._server.close()

    def contact(self, address: tuple[str, int]) -> Contact:
        """What connecting to the agent at that address brings, within 3.5 s; small packets only."""
        opened = self._open(address)
        if isinstance(opened, Contact):
            return opened
        opened.close()
        return Contact.REPLIES

    def look(self, others: Sequence[HostAgent], own_host: str) -> Paths:
        """What this agent and those it reaches find of each other, in 6 s, or 13 s where packets are lost."""
        some = others[:_MOST_TARGETS]
        targets = tuple(one.target for one in some)
        rows: dict[int, Mapping[int, Contact]] = {}
        own: dict[int, Contact] = {}
        passed: dict[tuple[int, int], int] = {}

        def add(rank: int, found: PathFound) -> Contact:
            if found.passed_bytes is not None:
                passed[rank, found.rank] = found.passed_bytes
            return found.contact

        def ask(target: PathTarget) -> None:
            opened = self._open(target.address)
            if isinstance(opened, Contact):
                own[target.rank] = opened
                return
            with contextlib.closing(opened) as link:
                link.send(PathRequest(tuple(one for one in targets if one.rank != target.rank)))
                own[target.rank] = add(self._rank, self._try_sizes(target))
                row = link.await_message(PathRow, _ROW_SECONDS)
                if row is not None:
                    rows[target.rank] = {one.rank: add(target.rank, one) for one in row.found}

        _for_each(ask, targets)
        hosts = {one.target.rank: one.host for one in some}
        return Paths(self._rank, {**hosts, self._rank: own_host}, {**rows, self._rank: own}, passed)

    def look_on(self, others: Sequence[HostAgent], own_host: str, *, urgent: bool = True) -> tuple[Look, ...]:
        """The last two looks since `forget`; a thread looks, later if all is well or not `urgent`."""
        last = self._looks[-1] if self._looks else None
        pause = _WHOLE_AGAIN_SECONDS if urgent else _IDLE_AGAIN_SECONDS
        if last is not None and not last.paths.is_whole:
            pause = _LOOK_AGAIN_SECONDS
        elif last is None and urgent:
            pause = 0.0
        if not self.is_looking and time.monotonic() - self._looked_at >= pause:

            def look() -> None:
                began = time.monotonic()
                paths = self.look(others, own_host)
                self._looked_at = time.monotonic()
                self._looks = [*self._looks[-1:], Look(began, self._looked_at, paths)]

            self._looking = threading.Thread(target=look, daemon=True)
            self._looking.start()
        return tuple(self._looks)

    @property
    def is_looking(self) -> bool:
        """Whether a look of `look_on` has not ended."""
        return self._looking is not None and self._looking.is_alive()

    def forget(self) -> None:
        """Start anew: what held the ranks up has healed."""
        if not self.is_looking:
            self._looks = []

    def _try_sizes(self, target: PathTarget) -> PathFound:
        """That a packet of full size passes to that agent and back, or the largest one that does."""
        address = target.address
        size, passed = self._try_size(address, None, _FULL_SECONDS)
        # Heavy loss is no such fault: small packets must pass where the large one did not.
        if passed is not False or not self._try_size(address, _SMALLEST_BYTES, _FULL_SECONDS)[1]:
            return PathFound(target.rank, Contact.REPLIES)
        if address not in self._passed_bytes:
            self._passed_bytes[address] = self._find_largest(address, size) + _HEADER_BYTES
        return PathFound(target.rank, Contact.SMALL_ONLY, self._passed_bytes[address])

    def _find_largest(self, address: tuple[str, int], full: int) -> int:
        """About the most bytes in one segment that pass to that agent and back, below `full`."""
        low, high = _SMALLEST_BYTES, full
        for _ in range(_SIZE_ROUNDS):
            sizes = [
                low + (high - low) * step // (_SIZES_AT_ONCE + 1) for step in range(1, _SIZES_AT_ONCE + 1)
            ]
            passed: list[int] = []

            def add_if_passed(size: int, passed: list[int] = passed) -> None:
                if self._try_size(address, size, _SIZE_SECONDS)[1]:
                    passed.append(size)

            _for_each(add_if_passed, sizes)
            low = max(passed, default=low)
            high = min((size for size in (*sizes, high) if size > low), default=high)
        return low

    def _try_size(
        self, address: tuple[str, int], size_bytes: int | None, seconds: float
    ) -> tuple[int, bool | None]:
        """The bytes of a message to that agent (one packet, if at most a full one), and whether it came back.

        None for that where it was not sent; None as its size for a full one.
        """
        try:
            link = Link(socket.create_connection(address, timeout=_CONNECT_SECONDS))
        except OSError:
            return 0, None
        with contextlib.closing(link):
            link.send(RunKey(self._key))
            if link.await_message(RunKey, seconds) != RunKey(self._key):
                return 0, None
            size = link.segment_bytes if size_bytes is None else min(size_bytes, link.segment_bytes)
            probe = PathProbe("x" * (size - len(line_of(PathProbe("")))))
            link.send_whole(probe)
            return size, link.await_message(PathProbe, seconds) == probe

    def _open(self, address: tuple[str, int]) -> Link | Contact:
        """A link of small packets to the agent at that address, which has replied; else what was found."""
        try:
            link = Link(connect_small(address, _CONNECT_SECONDS))
        except ConnectionRefusedError:
            return Contact.REFUSED
        except OSError as error:
            return Contact.NO_ROUTE if error.errno in _NO_ROUTE else Contact.NO_ANSWER
        link.send(RunKey(self._key))
        if link.await_message(RunKey, _REPLY_SECONDS) != RunKey(self._key):
            link.close()
            return Contact.HUNG
        return link

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.closing(Link(connection)) as link:
            if link.await_message(RunKey, _REPLY_SECONDS) != RunKey(self._key):
                return
            link.send(RunKey(self._key))
            request = link.await_next(_REPLY_SECONDS)
            if isinstance(request, PathProbe):
                link.send_whole(request)
                return
            if not isinstance(request, PathRequest):
                return
            found: list[PathFound] = []

            def probe(target: PathTarget) -> None:
                contact = self.contact(target.address)
                replies = contact is Contact.REPLIES
                found.append(self._try_sizes(target) if replies else PathFound(target.rank, contact))

            _for_each(probe, request.targets[:_MOST_TARGETS])
            link.send(PathRow(tuple(found)))


_T = TypeVar("_T")


def _for_each(act: Callable[[_T], None], targets: Sequence[_T]) -> None:
    """Do it for all targets at once, each in a thread: what does not answer takes its whole time."""
    threads = [threading.Thread(target=act, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
