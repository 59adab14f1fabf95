"""Whether the hosts of a run reach each other: every agent answers at a port of its own, and tries the others' ports.

The port is one that the kernel gives (an ephemeral one), as those of NCCL and gloo are: a firewall that opens the
rendezvous port alone is found. A thread answers, so that an agent that is busy still does; a stopped one does not.
"""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpudiag.ranks.agents.link import Link
from gpudiag.ranks.agents.messages import PathFound, PathRequest, PathRow, PathTarget, RunKey
from gpudiag.ranks.agents.survey import Surveyor
from gpudiag.ranks.diagnosis.paths import Contact, Paths

# The kernel repeats an unanswered SYN after 1 s (RFC 6298): one lost segment is no cut.
_CONNECT_SECONDS = 1.5
# A process that gets so little of the processor that it does not reply within this is as good as stopped.
_REPLY_SECONDS = 2.0
# The other agent first looks by itself, all its targets at once.
_ROW_SECONDS = _CONNECT_SECONDS + _REPLY_SECONDS + 0.5
# A cut is certain if a second look, so much later, finds it again: TCP mends an outage of a second by then.
_LOOK_AGAIN_SECONDS = 1.5
# An agent asks so many others at most; with more hosts each look covers others.
_MOST_TARGETS = 128
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL)


@dataclass(frozen=True, slots=True)
class HostAgent:
    """An agent that speaks for its host: the first of those there."""

    target: PathTarget
    host: str


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
        self._looks: list[Paths] = []
        self._looked_at = 0.0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stop answering; a second call does nothing."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._server.close()

    def contact(self, address: tuple[str, int]) -> Contact:
        """What connecting to the agent at that address brings, within 3.5 s."""
        opened = self._open(address)
        if isinstance(opened, Contact):
            return opened
        opened.close()
        return Contact.REPLIES

    def look(self, others: Sequence[HostAgent], own_host: str) -> Paths:
        """What this agent and every other that it reaches find of each other, within 8 s."""
        some = others[:_MOST_TARGETS]
        targets = tuple(one.target for one in some)
        rows: dict[int, Mapping[int, Contact]] = {}
        own: dict[int, Contact] = {}

        def ask(target: PathTarget) -> None:
            opened = self._open(target.address)
            own[target.rank] = opened if isinstance(opened, Contact) else Contact.REPLIES
            if isinstance(opened, Contact):
                return
            with contextlib.closing(opened) as link:
                link.send(PathRequest(tuple(one for one in targets if one.rank != target.rank)))
                row = link.await_message(PathRow, _ROW_SECONDS)
                if row is not None:
                    rows[target.rank] = {one.rank: one.contact for one in row.found}

        _for_each(ask, targets)
        hosts = {one.target.rank: one.host for one in some}
        return Paths(self._rank, {**hosts, self._rank: own_host}, {**rows, self._rank: own})

    def look_on(self, others: Sequence[HostAgent], own_host: str) -> Paths | None:
        """What is cut, once two looks in a row have found it; None until then. Looks in a thread of its own."""
        running = self._looking is not None and self._looking.is_alive()
        if running:
            return None
        if len(self._looks) == 2 and self._looks[1].lasting_cuts(self._looks[0]):
            return self._looks[1]
        if time.monotonic() - self._looked_at >= _LOOK_AGAIN_SECONDS:

            def look() -> None:
                self._looks = [*self._looks[-1:], self.look(others, own_host)]
                self._looked_at = time.monotonic()

            self._looking = threading.Thread(target=look, daemon=True)
            self._looking.start()
        return None

    def forget(self) -> None:
        """Start anew: what held the ranks up has healed."""
        if self._looking is None or not self._looking.is_alive():
            self._looks.clear()

    def _open(self, address: tuple[str, int]) -> Link | Contact:
        """A link to the agent at that address, which has replied; else what was found."""
        try:
            link = Link(socket.create_connection(address, timeout=_CONNECT_SECONDS))
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
            request = link.await_message(PathRequest, _REPLY_SECONDS)
            if request is None:
                return
            found: list[PathFound] = []

            def probe(target: PathTarget) -> None:
                found.append(PathFound(target.rank, self.contact(target.address)))

            _for_each(probe, request.targets[:_MOST_TARGETS])
            link.send(PathRow(tuple(found)))


def _for_each(act: Callable[[PathTarget], None], targets: Sequence[PathTarget]) -> None:
    """Do it for all targets at once, each in a thread: what does not answer takes its whole time."""
    threads = [threading.Thread(target=act, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
