"""A process that cannot take part in its job: the leader of the others gets the reason, and reports it."""

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

from gpudiag.errors import ExitStatus, GpudiagError, RankStartError
from gpudiag.ranks.agents.announce import Announcer
from gpudiag.ranks.agents.astray import is_same_job
from gpudiag.ranks.agents.discovery import connect_agent
from gpudiag.ranks.agents.link import Link, LinkLostError
from gpudiag.ranks.agents.messages import Card, FailedRun, FinishedRun, Stray
from gpudiag.ranks.agents.reach import Obstacle
from gpudiag.ranks.launchers import job_hosts, job_name

# The leader announces itself once it has missed somebody for 1.5 s, and may have been started a little later.
_FIND_SECONDS = 8.0
_VERDICT_SECONDS = 60.0
_SEARCH_SECONDS = 20.0
_LOOK_AGAIN_SECONDS = 0.1
# An agent has some twenty open, a rank with torch and its connections to three others forty; every system's
# own limit is 256 or more.
_OPEN_FILES = 64


class Outsider:
    """A process that may never be of the run: it finds the leader, and waits for its verdict."""

    def __init__(self, card: Card) -> None:
        """Announce the card, and give it to the leader."""
        self._announcer = Announcer(card, job_hosts(os.environ))
        self._link: Link | None = None
        self._announcer.start()

    @property
    def is_taken(self) -> bool:
        """Whether a leader has taken it."""
        return self._link is not None

    def poll(self) -> bool:
        """Whether a leader has ended the run, and reports this process in it. Does not wait for that."""
        card = self._announcer.card
        if self._link is None:
            for received in self._announcer.received_cards():
                one = received.card
                if one.leads and one.port is not None and is_same_job(card, one):
                    self._link = connect_agent((received.address, one.port), one.key)
                    if self._link is not None:
                        self._link.send(Stray(card))
                        break
            return False
        try:
            for message in self._link.receive():
                if isinstance(message, FinishedRun):
                    return any(
                        card.rank == one.rank or card.host == one.host for one in message.run.incidents
                    )
                if isinstance(message, FailedRun):
                    return True
        except LinkLostError:
            self.close_link()
        return False

    def others(self) -> tuple[Card, ...]:
        """Those of the same job that are kept out by the same."""
        own = self._announcer.card
        cards = [
            received.card for received in self._announcer.received_cards() if is_same_job(own, received.card)
        ]
        return tuple(one for one in cards if (one.place, one.obstacle) == (own.place, own.obstacle))

    def close_link(self) -> None:
        """Leave the leader, if there is one."""
        if self._link is not None:
            self._link.close()
        self._link = None

    def close(self) -> None:
        """Look no further; a second call does nothing."""
        self.close_link()
        self._announcer.close()


def require_open_files() -> None:
    """Raise RankStartError if this process may open fewer than 64 files: a rank would end in the middle."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < _OPEN_FILES:
        raise RankStartError(
            f"the limit of open files is {limit} on {socket.gethostname()}, and a"
            f" rank needs at least {_OPEN_FILES}",
            hint="raise it there, for example: ulimit -n 4096",
        )


def share_refusal(error: GpudiagError, rank: int, world_size: int) -> bool:
    """Whether the leader, searched here for 8 s, ended the run because this rank cannot start."""
    outsider = Outsider(_card(rank, world_size, trouble=error.message, hint=error.hint))
    began = time.monotonic()
    with contextlib.closing(outsider):
        while time.monotonic() - began < (_VERDICT_SECONDS if outsider.is_taken else _FIND_SECONDS):
            if outsider.poll():
                return True
            time.sleep(_LOOK_AGAIN_SECONDS)
    return False


class Search:
    """Looks for others of the job while rank 0's machine has no address: they may know one."""

    def __init__(self, card: Card) -> None:
        """Announce the card from the first call on."""
        self._card = card
        self._outsider: Outsider | None = None
        self._began = time.monotonic()

    def __call__(self, reason: str) -> None:
        """Look on; `reason` is the resolver's. Raises SystemExit: the leader of others has reported that."""
        if self._outsider is None:
            words = f"{self._card.place.rpartition(':')[0]} has no address there: {reason}"
            self._outsider = Outsider(replace(self._card, obstacle=Obstacle.NO_ADDRESS.value, found=words))
        if self._outsider.poll():
            raise SystemExit(int(ExitStatus.ERROR))

    def await_report(self) -> None:
        """Wait for a leader that knows of it; return where none does. Raises SystemExit: it reported that."""
        until = self._began + _SEARCH_SECONDS
        while self._outsider is not None and self._outsider.is_taken and time.monotonic() < until:
            self("")
            time.sleep(_LOOK_AGAIN_SECONDS)

    def others(self) -> tuple[Card, ...]:
        """Those of the job that do not know the name either."""
        return () if self._outsider is None else self._outsider.others()

    def close(self) -> None:
        """Look no further."""
        if self._outsider is not None:
            self._outsider.close()


@contextlib.contextmanager
def shared_search(rank: int, world_size: int, place: str) -> Iterator[Search]:
    """What to call while the name in `place` has no address."""
    with contextlib.closing(Search(_card(rank, world_size, place=place))) as search:
        yield search


def _card(rank: int, world_size: int, place: str = "", trouble: str = "", hint: str = "") -> Card:
    host = socket.gethostname()
    return Card(
        "", "", job_name(os.environ), os.getuid(), rank, world_size, host, place, trouble=trouble, hint=hint
    )
