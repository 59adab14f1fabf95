"""Which host, or pair of hosts, the network has cut off: decided from what agents found when they connected.

A connection is tried in two phases: a kernel accepts it also for a stopped process; only one that runs
replies.

    connects and replies        -> the agent runs
    connects, no reply          -> the host is up, and the process is stopped or gets no processor
    refused                     -> the host is up, and the process is gone
    no answer, or no route      -> nothing comes back: the host is off, or the network between is cut
    small packets only          -> the process replies, and a packet of full size is lost each time

Two hosts that do not answer each other while a third one reaches both are a cut pair; a host that answers
nobody is cut off, or off. With as many hosts on each side of a cut nobody knows which is cut off.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from gpudiag.compat import StrEnum
from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis import evidence
from gpudiag.ranks.diagnosis.watchdog import is_consequence

_SOURCE = "connections between the agents' hosts"
# An agent that replies but whose reports do not come may be starved of the processor for so long.
EXCUSED_SECONDS = 10.0
# Kinds of incident that a cut network also causes.
_SOFT = frozenset({IncidentKind.SILENT, IncidentKind.STALLED})


class Contact(StrEnum):
    """What one agent found when it connected to another."""

    REPLIES = "replies"
    HUNG = "hung"  # its host's kernel answers, the process does not
    REFUSED = "refused"
    NO_ANSWER = "no_answer"
    NO_ROUTE = "no_route"
    SMALL_ONLY = "small_only"  # it replies to small packets, and to none of full size


UNANSWERED = (Contact.NO_ANSWER, Contact.NO_ROUTE)
_WORDS = {
    Contact.REPLIES: "connects and replies",
    Contact.HUNG: "connects, and the process does not reply",
    Contact.REFUSED: "refused: its host is up",
    Contact.NO_ANSWER: "no answer",
    Contact.NO_ROUTE: "no route",
    Contact.SMALL_ONLY: "small packets pass, those of full size do not",
}


@dataclass(frozen=True, slots=True)
class Paths:
    """One look at the network: what the agents of `rows`, one rank a host, found of the others."""

    own: int
    hosts: Mapping[int, str]
    rows: Mapping[int, Mapping[int, Contact]]
    # Of pairs that lose large packets: the bytes of the largest IP packet that came through.
    passed_bytes: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def works(self, one: int, other: int) -> bool | None:
        """Whether something comes back between two hosts, both ways; None where neither could look."""
        found = [(other, self.rows.get(one, {}).get(other)), (one, self.rows.get(other, {}).get(one))]
        contacts = [(target, contact) for target, contact in found if contact is not None]
        if not contacts:
            return None
        return not any(self._is_cut(target, contact) for target, contact in contacts)

    def reachable(self) -> frozenset[int]:
        """The hosts that this one reaches, directly or over others, itself included."""
        reached, new = {self.own}, [self.own]
        while new:
            here = new.pop()
            there = {rank for rank in self.hosts if rank not in reached and self.works(here, rank)}
            reached |= there
            new += there
        return frozenset(reached)

    def cut_pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs that do not reach each other, among the hosts that this one reaches somehow."""
        return tuple(
            (one, other)
            for one, other in combinations(sorted(self.reachable()), 2)
            if self.works(one, other) is False
        )

    def narrow_pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs between which packets of full size are lost, one way at least, not small ones."""
        return tuple(
            (one, other)
            for one, other in combinations(sorted(self.hosts), 2)
            if Contact.SMALL_ONLY in (self.rows.get(one, {}).get(other), self.rows.get(other, {}).get(one))
        )

    @property
    def is_cut(self) -> bool:
        """Whether a host that was looked at is not reached, or a pair is cut."""
        return len(self.reachable()) < len(self.hosts) or bool(self.cut_pairs())

    @property
    def is_whole(self) -> bool:
        """Whether every host that was looked at is reached, and each pair exchanges packets of every size."""
        return not self.is_cut and not self.narrow_pairs()

    def lasting_cuts(self, before: "Paths") -> bool:
        """Whether something that was cut in the look `before` still is."""
        lost = (self.hosts.keys() - self.reachable()) & (before.hosts.keys() - before.reachable())
        return bool(lost) or bool(set(self.cut_pairs()) & set(before.cut_pairs()))

    def lasting_faults(self, before: "Paths") -> bool:
        """Whether something that was cut, or lost large packets, in the look `before` still does."""
        return self.lasting_cuts(before) or bool(set(self.narrow_pairs()) & set(before.narrow_pairs()))

    def name(self, ranks: Iterable[int]) -> str:
        """Those hosts, each with the rank that was asked."""
        return ", ".join(self.hosts[rank] for rank in sorted(ranks))

    def _is_cut(self, target: int, contact: Contact) -> bool:
        # Who refuses one host and answered another one lives: a firewall refuses in its name.
        return contact in UNANSWERED or (contact is Contact.REFUSED and target in self.rows)


def may_be_the_network(incident: Incident) -> bool:
    """Whether a cut network also explains this incident."""
    if incident.kind is IncidentKind.DIED:  # an end that some agent saw has its status
        return not any(fact.name in ("signal", "exit_status", "parent_process") for fact in incident.evidence)
    return incident.kind in _SOFT or is_consequence(incident)


def explain(incidents: Sequence[Incident], paths: Paths) -> tuple[Incident, ...] | None:
    """The incidents, with a cut of the network named as such; None where the network explains nothing.

    Empty where an agent was silent and replies now.
    """
    if not incidents or not all(map(may_be_the_network, incidents)):
        return None
    lost = paths.hosts.keys() - paths.reachable()
    pairs = paths.cut_pairs()
    if lost:
        return _describe_lost(incidents[0], paths, sorted(lost))
    if pairs:
        return tuple(_describe_pair(incidents[0], paths, pair) for pair in pairs)
    if paths.narrow_pairs():
        return _describe_narrow(incidents[0], paths)
    if all(_is_excused(incident, paths) for incident in incidents):
        return ()
    return tuple(_with_contact(incident, paths) for incident in incidents)


def _describe_lost(first: Incident, paths: Paths, lost: Sequence[int]) -> tuple[Incident, ...]:
    here = paths.reachable()
    tried_by = {rank for rank in here for gone in lost if gone in paths.rows.get(rank, {})}
    if tried_by == {paths.own} and len(lost) == 1 < len(here):
        # The agents of the others have ended: whether they reach that host nobody knows.
        return (_describe_pair(first, paths, (min(paths.own, lost[0]), max(paths.own, lost[0]))),)
    if len(here) == len(lost):
        one, other = sorted((sorted(here), list(lost)))  # the same words on both sides
        facts = (
            Evidence("one_side", paths.name(one), source=_SOURCE),
            Evidence("other_side", paths.name(other), source=_SOURCE),
            _ways(paths, here, lost),
        )
        return (_incident(first, IncidentKind.PARTED, other[0], paths, facts),)
    cut, whole = (lost, sorted(here)) if len(lost) < len(here) else (sorted(here), lost)
    unseen = "how the ranks there ended" if cut is lost else "what the other hosts did after that"
    return tuple(
        _incident(
            first,
            IncidentKind.CUT_OFF,
            rank,
            paths,
            (
                Evidence(
                    "not_reached_by" if cut is lost else "does_not_reach", paths.name(whole), source=_SOURCE
                ),
                _ways(paths, whole, (rank,)),
                Evidence("not_seen", unseen, source=f"the agent on {paths.hosts[paths.own]}"),
            ),
        )
        for rank in cut
    )


def _describe_pair(first: Incident, paths: Paths, pair: tuple[int, int]) -> Incident:
    one, other = pair
    both = [
        rank
        for rank in paths.hosts
        if rank not in pair and paths.works(one, rank) and paths.works(rank, other)
    ]
    facts = (
        Evidence("one_side", paths.hosts[one], source=_SOURCE),
        Evidence("other_side", paths.hosts[other], source=_SOURCE),
        _ways(paths, (one,), (other,)),
        *((Evidence("reached_both", paths.name(both), source=_SOURCE),) if both else ()),
    )
    return _incident(first, IncidentKind.PARTED, other, paths, facts)


def _describe_narrow(first: Incident, paths: Paths) -> tuple[Incident, ...]:
    """The host that loses large packets with every other one; else the pairs that lose them."""
    pairs = paths.narrow_pairs()
    hosts = [rank for rank in paths.hosts if sum(rank in pair for pair in pairs) == len(paths.hosts) - 1]
    # Two hosts have one path: neither of them is more at fault than the other.
    alone = [rank for rank in hosts if all(rank in pair for pair in pairs)] if len(paths.hosts) > 2 else []
    if len(alone) == 1:
        others = [rank for rank in paths.hosts if rank != alone[0]]
        facts = (*_largest(paths, pairs), _ways(paths, others, alone))
        return (_incident(first, IncidentKind.NARROWED, alone[0], paths, facts),)
    return tuple(
        _incident(
            first,
            IncidentKind.NARROWED,
            other,
            paths,
            (
                Evidence("one_side", paths.hosts[one], source=_SOURCE),
                Evidence("other_side", paths.hosts[other], source=_SOURCE),
                *_largest(paths, [(one, other)]),
                _ways(paths, (one,), (other,)),
            ),
        )
        for one, other in pairs
    )


def _largest(paths: Paths, pairs: Sequence[tuple[int, int]]) -> tuple[Evidence, ...]:
    """The largest packet that passes between all of these; empty where it was not measured."""
    passed = [size for pair in pairs for way in (pair, pair[::-1]) if (size := paths.passed_bytes.get(way))]
    source = "packets of several sizes between the agents' hosts"
    return (Evidence("largest_packet", min(passed), unit="B", source=source),) if passed else ()


def _incident(
    first: Incident, kind: IncidentKind, rank: int, paths: Paths, facts: tuple[Evidence, ...]
) -> Incident:
    noticed = Evidence("noticed_as", f"rank {first.rank} {first.kind.value}", source=evidence.SIDE_CHANNEL)
    return Incident(kind, rank, paths.hosts[rank], first.stage, first.at_seconds, (*facts, noticed))


def _ways(paths: Paths, ones: Iterable[int], others: Iterable[int]) -> Evidence:
    """What came back, in each direction that was tried."""
    tried = [
        f"{paths.hosts[source]} to {paths.hosts[target]}: {_WORDS[contact]}"
        for one in ones
        for other in others
        for source, target in ((one, other), (other, one))
        if (contact := paths.rows.get(source, {}).get(target)) is not None
    ]
    return Evidence("tried", "; ".join(sorted(tried)), source=_SOURCE)


def _is_excused(incident: Incident, paths: Paths) -> bool:
    silent = next((fact.value for fact in incident.evidence if fact.name == "agent_silent_for"), None)
    replies = paths.rows.get(paths.own, {}).get(incident.rank) is Contact.REPLIES
    return replies and silent is not None and float(silent) < EXCUSED_SECONDS


def _with_contact(incident: Incident, paths: Paths) -> Incident:
    """The incident, with what connecting to its rank's agent brought."""
    contact = paths.rows.get(paths.own, {}).get(incident.rank)
    if contact is None:
        return incident
    return replace(
        incident, evidence=(*incident.evidence, Evidence("agent_port", _WORDS[contact], source=_SOURCE))
    )
