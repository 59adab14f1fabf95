"""What of a host's own network keeps it from another one: an address that both have, or a route; pure.

Each failed way between two hosts is compared with what they have:

it has the other's address itself                     -> what it sends there stays on it
both have one hardware address                        -> a switch delivers to one of them
the other is in the network by which this one is known,
and what is for it leaves by another interface        -> a container's bridge, a tunnel, a route
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.published import OwnInterface
from gpudiag.ranks.diagnosis.survey import Survey, Try

_SOURCE = "the interfaces and routes of that host"


def find_conflicts(
    survey: Survey, failed: Sequence[tuple[tuple[int, int], Try]], first: Incident
) -> tuple[Incident, ...]:
    """An incident for each host whose own network explains one of the `failed` ways between agents."""
    found = sorted(conflict for way, one in failed for conflict in _of_way(survey, way, one))
    return tuple(
        Incident(
            IncidentKind.CONFLICTING,
            rank,
            survey.hosts[rank],
            first.stage,
            first.at_seconds,
            (
                *(Evidence(name, value, source=_SOURCE) for name, value in facts),
                Evidence("with", survey.name({other for *_, other in members}), source=_SOURCE),
                Evidence("noticed_as", f"rank {first.rank} {first.kind.value}", source="side channel"),
            ),
        )
        for (rank, facts), members in groupby(found, key=lambda one: one[:2])
    )


_Conflict = tuple[int, tuple[tuple[str, str], ...], int]  # whose, what it is, with whom


def _of_way(survey: Survey, way: tuple[int, int], one: Try) -> Iterator[_Conflict]:
    source, other = way
    own = _interface(survey, source, survey.meets_at.get(source, ""))
    held = _interface(survey, source, one.target.address)
    if held is not None:
        yield source, (("shared_address", one.target.address), ("own_interface", held.name)), other
        return
    theirs = _interface(survey, other, survey.meets_at.get(other, ""))
    if own is None:
        return
    if theirs is not None and own.hardware and own.hardware == theirs.hardware:
        rank, with_rank = max(way), min(way)
        yield rank, (("shared_hardware", own.hardware), ("own_interface", own.name)), with_rank
        return
    taken = _interface(survey, source, one.sent_from)
    if taken is not None and taken != own and own.is_in_network(one.target.address):
        yield source, (("sends_by", str(taken)), ("known_by", str(own))), other


def _interface(survey: Survey, rank: int, address: str) -> OwnInterface | None:
    found = survey.addresses.get(rank)
    return None if found is None else found.interface_of(address)
