"""Ranks of one job that do not meet, as some look for rank 0 elsewhere, or count other ranks; pure.

The leader's agent holds for its own ranks and for the strays that it found: one report is enough.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.number_ranges import number_ranges
from gpudiag.ranks.stages import IMPORT, RENDEZVOUS

# From the last stray on: others may be on their way.
SETTLE_SECONDS = 1.0
# Obstacles that do not go away when rank 0 itself has come up, of those that only its machine's network
# makes.
_CUTS = ("no_answer", "no_route")
# What TCP repairs, it repairs sooner.
UNREACHED_SECONDS = 3.0
# Where other ranks are still missing, or where it is two against two.
UNSETTLED_SECONDS = 5.0
# torch connects within a second where nobody is in its way.
KEPT_SECONDS = 3.0
_SOURCE = "what each agent announced"


class Relation(Enum):
    """How certain it is that an agent is of this job: the seconds for which it must be found.

    Two jobs of one user may both have started in part.
    """

    CERTAIN = SETTLE_SECONDS
    LIKELY = 4.0  # the port is the same
    POSSIBLE = 10.0  # neither a machine nor the port is


@dataclass(frozen=True, slots=True)
class Looker:
    """One agent: its rank, and where it looks for rank 0."""

    rank: int
    host: str
    world_size: int
    place: str  # HOST:PORT as it was given; empty where it knows none
    addresses: tuple[str, ...] = ()  # of HOST on its own machine
    obstacle: str = ""
    found: str = ""  # what it found there, in words
    trouble: str = ""  # why it cannot start
    hint: str = ""
    relation: Relation = Relation.CERTAIN
    joined: bool = True  # a link reaches it; else its announcements alone are received
    seconds: float = 0.0  # since it was found
    address: str = ""  # its own, where a host of the leader's has that, too
    shares_with: str = ""  # that host
    sent_by: str = ""  # the interface by which the leader's host sends there, and the one that should
    known_by: str = ""

    @property
    def port(self) -> str:
        """The port of its place."""
        return self.place.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class Met:
    """The ranks that have met: their leader, and who the others are."""

    leader: Looker
    own_addresses: frozenset[str]  # of the leader's machine
    hosts: Mapping[int, str]  # of the ranks that have met, the leader's among them
    absent: frozenset[int]


def find_split(met: Met, strays: Sequence[Looker], at_seconds: float, *, over: bool) -> tuple[Incident, ...]:
    """One incident for each way in which strays differ; empty while it is not certain.

    It is at the end (`over`), if the strays are all that is missing, or if nobody new was found for 5 s.
    """
    if not strays or not (over or _is_settled(met, strays)):
        return ()
    found = [*_find_troubles(strays, at_seconds)]
    rest = [one for one in strays if not one.trouble]
    found += _find_sizes(met, [one for one in rest if one.world_size != met.leader.world_size], at_seconds)
    rest = [one for one in rest if one.world_size == met.leader.world_size]
    places: dict[tuple[object, ...], list[Looker]] = {}
    for one in sorted(rest, key=lambda each: each.rank):
        apart = "" if one.joined else one.sent_by or one.host
        places.setdefault((one.place, one.addresses, apart), []).append(one)
    found += [_describe_place(met, group, at_seconds) for group in places.values()]
    return tuple(found)


def find_kept_away(waiting: Sequence[Looker], at_seconds: float) -> tuple[Incident, ...]:
    """One incident for each other server that has kept ranks in the rendezvous."""
    found: dict[str, Incident] = {}
    for one in sorted(waiting, key=lambda each: each.rank):
        if one.seconds >= KEPT_SECONDS:
            found.setdefault(one.found, _unreached(one, at_seconds))
    return tuple(found.values())


def _is_settled(met: Met, strays: Sequence[Looker]) -> bool:
    if any(_is_looking_up(met, one) and not one.obstacle for one in strays):
        return False
    newest = min(one.seconds for one in strays)
    if not all(one.joined for one in strays):
        cut = all(one.joined or one.obstacle in _CUTS for one in strays)
        return cut and newest >= UNREACHED_SECONDS
    complete = met.absent <= {one.rank for one in strays}
    if any(one.relation is not Relation.CERTAIN for one in strays):
        return complete and newest >= max(one.relation.value for one in strays)
    sizes = any(one.world_size != met.leader.world_size and not one.trouble for one in strays)
    split_evenly = sizes and len(met.hosts) == len(strays)
    return newest >= (SETTLE_SECONDS if complete and not split_evenly else UNSETTLED_SECONDS)


def _is_looking_up(met: Met, one: Looker) -> bool:
    """Whether it looks for the name that the leader looks for, and knows no address of it."""
    return bool(one.port) and one.place == met.leader.place and not one.addresses


def _find_troubles(strays: Sequence[Looker], at_seconds: float) -> list[Incident]:
    return [
        Incident(
            IncidentKind.START_FAILED,
            one.rank,
            one.host,
            IMPORT,
            at_seconds,
            (
                Evidence("refused", one.trouble, source=f"the process on {one.host}"),
                *((Evidence("hint", one.hint, source="gpudiag"),) if one.hint else ()),
            ),
        )
        for one in sorted(strays, key=lambda each: each.rank)
        if one.trouble
    ]


def _find_sizes(met: Met, strays: Sequence[Looker], at_seconds: float) -> list[Incident]:
    """The ranks that were started with another WORLD_SIZE than most."""
    if not strays:
        return []
    sizes: dict[int, list[tuple[int, str]]] = {met.leader.world_size: list(met.hosts.items())}
    for one in strays:
        sizes.setdefault(one.world_size, []).append((one.rank, one.host))
    # Where it is one against one, the leader's counts: nobody can know.
    usual = max(sizes, key=lambda size: (len(sizes[size]), size == met.leader.world_size))
    found = []
    for size, members in sizes.items():
        if size == usual:
            continue
        rank, host = min(members)
        facts = (
            Evidence("world_size", size, source=_SOURCE),
            Evidence("others_world_size", usual, source=_SOURCE),
            *_who(members),
        )
        found.append(Incident(IncidentKind.SPLIT, rank, host, RENDEZVOUS, at_seconds, facts))
    return found


def _describe_place(met: Met, group: Sequence[Looker], at_seconds: float) -> Incident:
    first, leader = group[0], met.leader
    if first.place == leader.place and not first.joined and set(first.addresses) & met.own_addresses:
        return _conflict(met, group, at_seconds) or _unreached(first, at_seconds)
    if _is_looking_up(met, first):
        name = first.place.rpartition(":")[0]
        found = first.found or f"the resolver of {first.host} has not replied for {name}"
        return _unreached(replace(first, obstacle=first.obstacle or "no_address", found=found), at_seconds)
    members = [(one.rank, one.host) for one in group]
    is_theirs_rank_0s = bool(set(first.addresses) & met.own_addresses)
    is_ours_rank_0s = bool(set(leader.addresses) & met.own_addresses)
    shown = next((one for one in group if one.found), first)
    reached: tuple[Evidence, ...] = (
        *((Evidence("obstacle", shown.obstacle, source="connecting there"),) if shown.obstacle else ()),
        *((Evidence("found", shown.found, source="connecting there"),) if shown.found else ()),
    )
    if first.place == leader.place and not is_ours_rank_0s and not is_theirs_rank_0s and leader.rank == 0:
        # All look where rank 0 is not.
        facts: tuple[Evidence, ...] = (
            Evidence("uses", first.place, source=_SOURCE),
            Evidence("rank_0_host", leader.host, source=_SOURCE),
        )
        return Incident(
            IncidentKind.SPLIT, 0, leader.host, RENDEZVOUS, at_seconds, (*facts, *_who(members), *reached)
        )
    others = [(rank, host) for rank, host in met.hosts.items()]
    wrong_here = is_theirs_rank_0s and (not is_ours_rank_0s or len(group) > len(others))
    if wrong_here:  # most look at another port of rank 0's machine, or rank 0 itself elsewhere
        facts = (
            Evidence("uses", _spell(leader, first), source=_SOURCE),
            Evidence("others_use", _spell(first, leader), source=_SOURCE),
            *_who(others),
        )
        rank, host = min(others)
        return Incident(IncidentKind.SPLIT, rank, host, RENDEZVOUS, at_seconds, facts)
    facts = (
        Evidence("uses", _spell(first, leader), source=_SOURCE),
        Evidence("others_use", _spell(leader, first), source=_SOURCE),
        *_who(members),
        *reached,
    )
    return Incident(IncidentKind.SPLIT, first.rank, first.host, RENDEZVOUS, at_seconds, facts)


def _conflict(met: Met, group: Sequence[Looker], at_seconds: float) -> Incident | None:
    """That a host has the address of another one, or that the leader's sends to some by a wrong interface."""
    source, one = "the interfaces and routes of the hosts", group[0]
    if one.shares_with:
        rank, host, other = one.rank, one.host, one.shares_with
        facts = [("shared_address", one.address)]
    elif one.sent_by:
        rank, host = met.leader.rank, met.leader.host
        other = ", ".join(dict.fromkeys(each.host for each in group))
        facts = [("sends_by", one.sent_by), ("known_by", one.known_by)]
    else:
        return None
    evidence = tuple(Evidence(name, value, source=source) for name, value in (*facts, ("with", other)))
    return Incident(IncidentKind.CONFLICTING, rank, host, RENDEZVOUS, at_seconds, evidence)


def _unreached(one: Looker, at_seconds: float) -> Incident:
    """That a rank is up, and its host does not get to rank 0's machine."""
    facts = (
        Evidence("obstacle", one.obstacle or "no_answer", source="connecting to rank 0's machine"),
        Evidence("rank_0", one.place, source=_SOURCE),
        *((Evidence("found", one.found, source="connecting to rank 0's machine"),) if one.found else ()),
    )
    return Incident(IncidentKind.UNREACHED, one.rank, one.host, RENDEZVOUS, at_seconds, facts)


def _spell(one: Looker, other: Looker) -> str:
    """Where it looks; with the address, where both give the same name and mean another."""
    if one.place != other.place or not one.addresses:
        return one.place
    return f"{one.place} at {', '.join(one.addresses)}"


def _who(members: Sequence[tuple[int, str]]) -> tuple[Evidence, ...]:
    """The ranks and their hosts."""
    hosts = dict.fromkeys(host for _, host in members)
    return (
        Evidence("ranks", number_ranges([rank for rank, _ in members]), source=_SOURCE),
        Evidence("hosts", ", ".join(hosts), source=_SOURCE),
    )
