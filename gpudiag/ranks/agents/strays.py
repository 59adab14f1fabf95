"""The agents that come to a leader beside the rendezvous: who they are, and whether they are of its run."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpudiag.ranks.agents import messages
from gpudiag.ranks.agents.addresses import find_odd_way
from gpudiag.ranks.agents.announce import FRESH_SECONDS, Announcer, ReceivedCard
from gpudiag.ranks.agents.astray import relation
from gpudiag.ranks.agents.link import Link, LinkLostError
from gpudiag.ranks.diagnosis.split import Looker, Met, Relation
from gpudiag.ranks.diagnosis.start_error import describe_twins

_Place = tuple[int, str]  # rank and host


@dataclass(slots=True)
class StrayRecord:
    """An agent that looks for rank 0 elsewhere, or counts other ranks, and waits for a verdict."""

    card: messages.Card
    link: Link
    found_at: float = field(default_factory=time.monotonic)


class Strays:
    """What one leader knows of agents that do not follow it, and may be of its run."""

    def __init__(
        self,
        key: str,
        own_rank: int,
        world_size: int,
        announcer: Announcer | None,
        hosts: Callable[[], dict[int, str]],
        addresses: Callable[[], Mapping[str, str]],
        is_under_way: Callable[[], bool],
    ) -> None:
        """Of the run with that `key`; the `announcer` finds agents that do not find this leader.

        `hosts` are those of the ranks that are here, by `addresses` the other ones; `is_under_way` is
        whether they have begun to measure.
        """
        self._key = key
        self._own_rank = own_rank
        self._world_size = world_size
        self._announcer = announcer
        self._hosts = hosts
        self._addresses = addresses
        self._is_under_way = is_under_way
        self._records: dict[_Place, StrayRecord] = {}
        self._relayed: dict[_Place, ReceivedCard] = {}
        self._has_refused = False
        self.twins: dict[_Place, str] = {}  # ranks that were started twice, with both hosts
        self.twins_since = math.inf  # CLOCK_MONOTONIC, in seconds
        self.yields_to: ReceivedCard | None = None  # another leader of the same rank, on rank 0's machine

    @property
    def place(self) -> str:
        """Where the ranks look for rank 0, HOST:PORT; empty where they do so on this machine alone."""
        return "" if self._card is None else self._card.place

    def card_of(self, hello: messages.Hello) -> messages.Card:
        """What an agent that counts other ranks, and looks at the same place, would announce."""
        own = self._card
        place, addresses = ("", ()) if own is None else (own.place, own.addresses)
        return messages.Card(
            self._key, "", "", 0, hello.rank, hello.world_size, hello.host, place, addresses, (), hello.port
        )

    def welcome(self, link: Link, card: messages.Card) -> None:
        """Keep the link of an agent that needs this verdict; if all ranks are here, of another run."""
        is_own = card.key == self._key
        complete = len(self._hosts()) == self._world_size
        if self._is_under_way() or (complete and not is_own):
            if is_own:
                self._has_refused = True
                link.send(messages.RefusedRank(card.rank, self._why_refused(card)))
            link.close()  # of another job: its own rank 0 may still come
            return
        if is_own and self._is_here(card):
            self._note_twin(card.rank, card.host)
        earlier = self._records.pop((card.rank, card.host), None)
        if earlier is not None:
            earlier.link.close()
        self._records[card.rank, card.host] = StrayRecord(card, link)

    def poll(self) -> None:
        """Receive the messages of strays; forget those that have found their own rank 0, or have ended."""
        for place, record in tuple(self._records.items()):
            try:
                for message in record.link.receive():
                    if isinstance(message, messages.Stray):
                        record.card = message.card
            except LinkLostError:
                record.link.close()
                del self._records[place]

    def note_relayed(self, card: messages.Card, address: str) -> None:
        """Keep what an agent announces that a follower receives."""
        now = time.monotonic()
        earlier = self._relayed.get((card.rank, card.host))
        first_at = now if earlier is None else earlier.first_at
        self._relayed[card.rank, card.host] = ReceivedCard(card, address, now, first_at)

    @property
    def wants_relays(self) -> messages.RelayRequest | None:
        """What followers are asked for once ranks have been missing for a moment; None before."""
        misses = self._announcer is not None and self._announcer.is_announcing
        return messages.RelayRequest(self._card) if misses and self._card is not None else None

    def announce(self, incomplete: bool) -> None:
        """Announce this leader while ranks are missing, and find out whom the others look for."""
        if self._announcer is None:
            return
        if not (incomplete or self.twins or self._has_refused):
            self._announcer.pause()
            return
        self._announcer.start()
        own = self._announcer.card
        for received in self._announcer.received_cards():
            other = received.card
            if not other.leads or (other.key, other.rank) != (own.key, own.rank):
                continue
            if set(own.addresses) & set(own.machine):  # the others look here
                if not self._is_under_way() and (own.rank, other.host) not in self.twins:
                    self._note_twin(own.rank, other.host)
            elif set(other.addresses) & set(other.machine) or other.host < own.host:
                self.yields_to = received

    def lookers(self) -> tuple[Looker, ...]:
        """The agents that have found this one, or whose cards came, and whose ranks are missing here.

        Those who look where a process of this run's ranks looks are of another job.
        """
        now = time.monotonic()
        known = [(record.card, record.found_at, "") for record in self._records.values()]
        known += [(received.card, received.first_at, received.address) for received in self._unreached()]
        of_others = {(one.key, one.place) for one, *_ in known if self._is_here(one) and one.key != self._key}
        return tuple(
            self._with_conflict(self.looker(one, now - found_at, joined=not address), one, address)
            for one, found_at, address in known
            if not self._is_here(one) and (one.key, one.place) not in of_others
        )

    def looker(self, card: messages.Card, seconds: float, *, joined: bool) -> Looker:
        """That agent, as `diagnosis.split` judges it."""
        own = self._card
        return Looker(
            rank=card.rank,
            host=card.host,
            world_size=card.world_size,
            place=card.place,
            addresses=card.addresses,
            obstacle=card.obstacle,
            found=card.found,
            trouble=card.trouble,
            hint=card.hint,
            relation=Relation.CERTAIN if own is None else relation(own, frozenset(self._addresses()), card),
            joined=joined,
            seconds=seconds,
        )

    def _with_conflict(self, looker: Looker, card: messages.Card, address: str) -> Looker:
        """The agent, with what keeps from it what is sent to `address`, empty for one with a link."""
        shares_with = self._addresses().get(address, "") if address in card.machine else ""
        if shares_with:
            return replace(looker, address=address, shares_with=shares_with)
        way = find_odd_way(address) if address else None
        if way is None:
            return looker
        # Two interfaces in one network are no fault where it answers by the one that the agent connects to.
        taken, known_by = (set(card.addresses).intersection(one.plain_addresses()) for one in way)
        return looker if taken or not known_by else replace(looker, sent_by=str(way[0]), known_by=str(way[1]))

    def met(self) -> Met:
        """The ranks that have met this one."""
        card, hosts = self._card, self._hosts()
        place, addresses, machine = (
            ("", (), ()) if card is None else (card.place, card.addresses, card.machine)
        )
        leader = Looker(self._own_rank, hosts[self._own_rank], self._world_size, place, addresses)
        return Met(leader, frozenset(machine), hosts, frozenset(range(self._world_size)) - hosts.keys())

    def links(self) -> list[Link]:
        """The links to those that wait for the verdict."""
        return [record.link for record in self._records.values()]

    def release(self) -> None:
        """Forget the links, which the caller of `links` closes."""
        self._records.clear()

    def leave_others(self) -> None:
        """Close the links to those that the verdict is not about."""
        reported = {(one.rank, one.host) for one in self.lookers()} | self.twins.keys()
        for place in self._records.keys() - reported:
            self._records.pop(place).link.close()

    def announce_end(self, exit_status: int) -> None:
        """Let agents whose cards come, and that no link reaches, end as all do."""
        if self._announcer is not None and self._unreached():
            self._announcer.announce_end(exit_status)

    @property
    def _card(self) -> messages.Card | None:
        return None if self._announcer is None else self._announcer.card

    def _is_here(self, card: messages.Card) -> bool:
        """Whether this run, with as many ranks, has a process with that rank."""
        return card.world_size == self._world_size and card.rank in self._hosts()

    def _why_refused(self, card: messages.Card) -> str:
        """The reply to a process that comes to a run of which all ranks are there."""
        place = f" at {card.place}" if card.place else ""
        if not self._is_here(card):
            return f"another run, of {self._world_size} ranks, meets{place}"
        first = self._hosts()[card.rank]
        words = f"rank {card.rank} was started twice in this run, on {first} and on {card.host}"
        return f"{words}, or two jobs meet{place}"

    def _note_twin(self, rank: int, host: str) -> None:
        """Note a second process with that rank, and both hosts."""
        self.twins[rank, host] = describe_twins(rank, self._hosts()[rank], host)
        self.twins_since = min(self.twins_since, time.monotonic())

    def _received_cards(self) -> tuple[ReceivedCard, ...]:
        """What agents announce that reaches this one, or one of its followers."""
        own = () if self._announcer is None else self._announcer.received_cards()
        known = {(received.card.rank, received.card.host) for received in own}
        oldest = time.monotonic() - FRESH_SECONDS
        relayed = (received for place, received in self._relayed.items() if place not in known)
        return (*own, *(received for received in relayed if received.at >= oldest))

    def _unreached(self) -> list[ReceivedCard]:
        """The agents of this run whose cards come, and that no link reaches."""
        if self._announcer is None or self._own_rank != 0:  # the others look for rank 0, and still may come
            return []
        return [
            received
            for received in self._received_cards()
            if received.card.key == self._key
            and not received.card.leads
            and received.card.world_size == self._world_size
            and (received.card.rank, received.card.host) not in self._records
            and not self._is_here(received.card)
        ]
