"""An agent that does not find rank 0's looks for the leader of others of its job, and obeys its verdict."""

import ipaddress
import time
from dataclasses import replace

from gpudiag.ranks.agents.announce import Announcer, ReceivedCard
from gpudiag.ranks.agents.discovery import Address, Discovery, connect_agent
from gpudiag.ranks.agents.link import Link, LinkLostError
from gpudiag.ranks.agents.messages import (
    Card,
    FailedRun,
    FinishedRun,
    Interrupted,
    Message,
    RefusedRank,
    Stray,
)
from gpudiag.ranks.agents.reach import MeetingWatch, Reach
from gpudiag.ranks.diagnosis.split import Relation

# What there is at the place where it looks takes a moment to find out; the leader wants to know that, too.
_MOST_LOOK_SECONDS = 6.0
_RETRY_SECONDS = 0.5
# Leaders answer at once; what only they receive they report some seconds later.
_FIND_SECONDS = 3.5
_REPORT_SECONDS = 12.0


class Astray:
    """One agent that misses rank 0: where others of its job are, and its link to their leader."""

    def __init__(self, announcer: Announcer, discovery: Discovery, watch: MeetingWatch | None) -> None:
        """Find others by the `announcer`; what the `watch` finds goes to their leader."""
        self._announcer = announcer
        self._discovery = discovery
        self._watch = watch
        self._link: Link | None = None
        self._sent: Card | None = None
        self._leader_key = ""
        self._began: float | None = None
        self._tried_at = 0.0

    @property
    def card(self) -> Card:
        """What this agent announces."""
        return self._announcer.card

    @property
    def is_joined(self) -> bool:
        """Whether the leader of others waits for this agent's report, and will send its verdict."""
        return self._link is not None

    @property
    def may_be_reported(self) -> bool:
        """Whether there is a leader that knows this agent, or there was no time yet to find one.

        A lower rank, kept out by the same, would be the leader, and may have been started some seconds later.
        """
        now = time.monotonic()
        waited = now - (self._began or now)
        if self.is_joined or waited < _FIND_SECONDS:
            return True
        received = [one for one in self._announcer.received_cards() if is_same_job(self.card, one.card)]
        in_time = {one.card.rank for one in received if now - one.first_at >= _FIND_SECONDS}
        is_early = not in_time.issuperset(range(1, self.card.rank))
        return (is_early or any(one.card.leads for one in received)) and waited < _REPORT_SECONDS

    def start(self) -> None:
        """Start looking for others."""
        self._began = self._began or time.monotonic()
        self._announcer.start()

    def found_rank_0(self) -> None:
        """Look no further."""
        self._announcer.pause()
        self.close()

    def close(self) -> None:
        """Leave the other leader; a second call does nothing."""
        if self._link is not None:
            self._link.close()
        self._link = self._sent = None

    def release(self) -> Link | None:
        """The link to the other leader, which the caller must close from now on; None where there is none."""
        link, self._link = self._link, None
        return link

    def addresses(self) -> dict[int, Address]:
        """Where agents of lower ranks that are of the same run, and look at the same place, listen."""
        found: dict[int, Address] = {}
        for received in self._announcer.received_cards():
            one = received.card
            if one.port is None or one.relayed:
                continue
            if one.rank < self.card.rank and self._is_same_run(received):
                found[one.rank] = (received.address, one.port)
        return found

    def leader(self) -> int | None:
        """The lower rank that leads those of the same run; None where none is known."""
        ranks = [
            received.card.rank
            for received in self._announcer.received_cards()
            if received.card.leads and received.card.rank < self.card.rank and self._is_same_run(received)
        ]
        return min(ranks, default=None)

    def poll(self) -> Message | None:
        """The last word of the leader of others of this job: the run, or that it failed."""
        self._describe_way()
        if self._link is None:
            self._join_some_leader()
            return self._read_end()
        if self.card != self._sent:
            self._link.send(Stray(self.card))
            self._sent = self.card
        try:
            for message in self._link.receive():
                if isinstance(message, FinishedRun | RefusedRank):
                    return message
                if isinstance(message, FailedRun | Interrupted):
                    if self._leader_key == self.card.key:
                        return message
                    self.close()  # that may be of another job, and shows nothing of this one
                    return None
        except LinkLostError:
            self.close()
        return None

    def join(self, leader: ReceivedCard) -> bool:
        """Whether that leader takes this agent's report, and will send its verdict."""
        if leader.card.port is None:
            return False
        link = connect_agent((leader.address, leader.card.port), leader.card.key)
        if link is None:
            return False
        self._link, self._sent, self._leader_key = link, None, leader.card.key
        return True

    def _join_some_leader(self) -> None:
        now = time.monotonic()
        if now - self._tried_at < _RETRY_SECONDS or self._is_still_looking(now):
            return
        for received in self._announcer.received_cards():
            if not received.card.leads or received.card.relayed or not is_same_job(self.card, received.card):
                continue
            if self._is_at_place(received):
                if received.card.key != self.card.key:  # another name of the same machine
                    self._discovery.adopt(received.card.key)
                    self._announcer.introduce(replace(self.card, key=received.card.key))
                continue
            self._tried_at = now
            if received.card.rank != self.card.rank and self.join(received):
                return

    def _describe_way(self) -> None:
        """Announce what is in the way to rank 0, too."""
        reach: Reach | None = None if self._watch is None else self._watch.latest
        obstacle, found = ("", "") if reach is None else (reach.obstacle.value, reach.words)
        if (obstacle, found) != (self.card.obstacle, self.card.found):
            self._announcer.introduce(replace(self.card, obstacle=obstacle, found=found))

    def _read_end(self) -> Message | None:
        """That a leader has reported this agent, though no link reaches it."""
        for received in self._announcer.received_cards():
            if received.card.ended is not None and received.card.leads and received.card.key == self.card.key:
                return FailedRun(received.card.ended)
        return None

    def _is_still_looking(self, now: float) -> bool:
        watch = self._watch
        waited = now - (self._began or now)
        return watch is not None and not watch.has_looked and waited < _MOST_LOOK_SECONDS

    def _is_same_run(self, received: ReceivedCard) -> bool:
        if received.card.key != self.card.key:
            return False
        at_rank_0 = received.card.leads and received.card.rank == 0
        return self._is_at_place(received) if at_rank_0 else received.card.place == self.card.place

    def _is_at_place(self, received: ReceivedCard) -> bool:
        """Whether the leader of that card is rank 0's, and just where this agent looks for it."""
        own, other = self.card, received.card
        if other.rank != 0 or port_of(own.place) != port_of(other.place):
            return False
        if set(own.addresses) & set(other.machine):
            return True
        is_here = received.address.startswith("127.") or received.address in own.machine
        return is_here and all(ipaddress.ip_address(one).is_loopback for one in own.addresses)


def port_of(place: str) -> str:
    """The port of HOST:PORT; empty for a file."""
    return place.rpartition(":")[2]


def is_same_job(own: Card, other: Card) -> bool:
    """Whether two agents may be of one job: by the launcher, else user, command and size."""
    if own.key and own.key == other.key:
        return True
    if own.job and other.job:
        return own.job == other.job
    alike = own.user == other.user and own.world_size == other.world_size
    return alike and (own.entry == other.entry or not (own.entry and other.entry))


def relation(own: Card, known: frozenset[str], other: Card) -> Relation:
    """What shows that another agent may be of the same job, whose machines have the `known` addresses.

    Two jobs of one user share no machine, and perhaps no port.
    """
    if own.key == other.key or other.trouble or (own.job and own.job == other.job):
        return Relation.CERTAIN
    if set(other.addresses) & known.union(own.machine, own.addresses):
        return Relation.CERTAIN
    return Relation.LIKELY if port_of(own.place) == port_of(other.place) else Relation.POSSIBLE
