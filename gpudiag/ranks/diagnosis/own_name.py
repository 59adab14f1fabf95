"""Ranks that gloo cannot bring together, as a host's own name leads other hosts astray; pure."""

import ipaddress
from collections.abc import Mapping, Sequence

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis.view import RankView
from gpudiag.ranks.stages import INIT, RENDEZVOUS

_SOURCE = "the resolver of that host"


def find_misnamed(
    waiting: Sequence[Incident], views: Sequence[RankView], own_names: Mapping[int, str]
) -> tuple[Incident, ...]:
    """One incident for each host whose own name has no address or a loopback one, where that explains `waiting`.

    gloo publishes the address of the host's name (torch's ProcessGroupGloo.cpp), and ranks of other hosts then
    connect to themselves. `own_names` are those addresses by rank, where gloo looks them up. Ranks on GPUs meet by
    NCCL, which takes an interface.
    """
    if not waiting or any(one.stage not in (RENDEZVOUS, INIT) for one in waiting):
        return ()
    if any(view.has_gpu for view in views):
        return ()
    hosts = {view.rank: view.host for view in views}
    found: dict[str, Incident] = {}
    for rank, address in own_names.items():
        if address and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            continue
        facts = (
            Evidence("own_name", hosts[rank], source=_SOURCE),
            Evidence("own_address", address or "none", source=_SOURCE),
        )
        first = waiting[0]
        incident = Incident(IncidentKind.MISNAMED, rank, hosts[rank], first.stage, first.at_seconds, facts)
        found.setdefault(hosts[rank], incident)
    return tuple(found.values())
