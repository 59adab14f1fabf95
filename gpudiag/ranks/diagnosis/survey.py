"""What hosts of a run find when each connects to the others: at published addresses, other ports, rank 0's.

Each host's agent tries by itself and reports over its connection to the leading agent, so that one that lets
nothing in, or gets nothing out, is still asked. Silence, a refusal and a prohibition are distinguished:

    refused     -> a packet ends the connection: nobody listens, or a firewall sends it (tcp reset)
    prohibited  -> an ICMP message came back, or the host's own routes forbid it
    silent      -> nothing came back: a firewall drops it, or the way there is cut
    no route    -> the host's own kernel knows no way
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudiag.compat import StrEnum
from gpudiag.model.published import HostAddresses, Published


class Answer(StrEnum):
    """What came back when one host connected to a port of another."""

    REPLIES = "replies"  # an agent of this run
    ACCEPTS = "accepts"
    REFUSED = "refused"
    SILENT = "silent"
    PROHIBITED = "prohibited"
    NO_ROUTE = "no route"
    NO_ADDRESS = "no address"  # the name is not known there

    @property
    def is_open(self) -> bool:
        """Whether somebody accepted the connection."""
        return self in (Answer.REPLIES, Answer.ACCEPTS)


class Purpose(StrEnum):
    """Why a port is tried."""

    AGENT = "agent"  # where the host's agent answers, at the address by which agents know it
    PUBLISHED = "published"  # the same port, at an address that the ranks publish
    MASTER = "master"  # where ranks meet
    PORT = "port"  # any, to see which are open


@dataclass(frozen=True, slots=True)
class Target:
    """A port to try, of the host that this rank's agent speaks for."""

    rank: int
    address: str
    port: int
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Try:
    """What a host found at a target: the name's address there, if any, and the kernel's words."""

    target: Target
    answer: Answer
    address: str = ""
    words: str = ""
    sent_from: str = ""  # the host's own address on the way there, by its routes; of agents' ports alone


@dataclass(frozen=True, slots=True)
class Survey:
    """What the hosts found of each other; each host by the rank whose agent speaks for it."""

    hosts: Mapping[int, str]
    addresses: Mapping[int, HostAddresses]  # of hosts whose kernel lists them
    meets_at: Mapping[int, str]  # the address by which agents know the host
    rows: Mapping[int, Sequence[Try]]
    library: str  # whose addresses the ranks publish: gloo or NCCL
    master: str = ""  # HOST:PORT where ranks meet
    server: int | None = None  # the rank that speaks for rank 0's host

    def published(self, rank: int) -> tuple[Published, ...]:
        """What the ranks of that host publish; empty where it is not known."""
        found = self.addresses.get(rank)
        return () if found is None else found.of(self.library)

    def tries(self, purpose: Purpose, rank: int | None = None) -> dict[tuple[int, int], list[Try]]:
        """The tries for that purpose by (who tried, whose host), of one target where `rank` is given."""
        found: dict[tuple[int, int], list[Try]] = {}
        for source, row in self.rows.items():
            for one in row:
                if one.target.purpose is purpose and rank in (None, one.target.rank):
                    found.setdefault((source, one.target.rank), []).append(one)
        return found

    def name(self, ranks: Iterable[int]) -> str:
        """Those hosts, by rank."""
        return ", ".join(self.hosts[rank] for rank in sorted(ranks))

    def own(self, rank: int, address: str) -> bool:
        """Whether that host has the address itself: then it reaches nobody else there."""
        found = self.addresses.get(rank)
        return found is not None and found.has(address)


def connects(one: str, other: str) -> bool:
    """Whether a rank of gloo that publishes `one` connects to the one with `other`: the greater address does.

    Both must be of one family (isInitiator of gloo's transport/tcp/device.cc).
    """
    first, second = (ipaddress.ip_address(text.partition("%")[0]) for text in (one, other))
    return first.packed > second.packed
