"""When a run is followed by a localisation, and on which nodes."""

import pytest

from gpudiag.checks.ranks.between_hosts import NETWORK_PATH_LOSSY
from gpudiag.checks.ranks.collective import COLLECTIVE_CORRUPTED, COLLECTIVE_SLOW, COLLECTIVE_SPEED
from gpudiag.checks.ranks.incident_kinds import COLLECTIVE_STALLED, RANK_LATE
from gpudiag.model.evidence import HostSubject
from gpudiag.model.measure import IncidentKind, InjectedFault, Node, RankReport
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.ranks.rank_run import RankRun
from gpudiag.runs.localise import (
    _ENDINGS,
    add_localisation,
    is_localisation_due,
    nodes_of,
    why_not_localised,
)
from tests.unit.collectives.measurements import make_incident

FAILED = Missing(MissingReason.ERROR, "they ended")


def run(hosts: str, *incidents: IncidentKind, injected: tuple[InjectedFault, ...] = ()) -> RankRun:
    """A run with a rank on each of these hosts."""
    reports = tuple(RankReport(rank, 0, host, 4240, "teardown", 0) for rank, host in enumerate(hosts))
    happened = tuple(make_incident(kind) for kind in incidents)
    return RankRun(len(hosts), "spawn", hosts[0], reports, happened, injected, 2.0)


def found(*kinds):
    return [kind.finding(HostSubject("a"), "it was so") for kind in kinds]


def test_hosts_are_nodes_with_their_ranks_and_ranks_of_one_host_act_as_nodes():
    assert nodes_of(run("aabb")) == (Node("a", (0, 1)), Node("b", (2, 3)))
    assert nodes_of(run("aaa")) == (Node("a", (0,)), Node("a", (1,)), Node("a", (2,)))


def test_it_takes_four_nodes():
    assert "this run has 3" in str(why_not_localised(run("aaa")))
    assert "this run has 2" in str(why_not_localised(run("aaaabbbb")))
    assert why_not_localised(run("aaaa")) is None
    assert why_not_localised(run("abcd")) is None


@pytest.mark.parametrize("kind", IncidentKind)
def test_ranks_meet_again_after_all_that_does_not_end_a_run(kind: IncidentKind):
    assert (why_not_localised(run("abcd", kind)) is not None) is (kind in _ENDINGS)


@pytest.mark.parametrize("kind", [COLLECTIVE_SLOW, COLLECTIVE_STALLED, NETWORK_PATH_LOSSY])
def test_what_leaves_open_where_it_is_is_localised_unasked(kind):
    assert is_localisation_due(run("abcd"), "gloo", lambda: found(kind, COLLECTIVE_SPEED))
    assert is_localisation_due(run("aaaa"), "nccl", lambda: found(kind))
    # They have no network of their own.
    assert not is_localisation_due(run("aaaa"), "gloo", lambda: found(kind))
    assert not is_localisation_due(run("ab"), "nccl", lambda: found(kind))


@pytest.mark.parametrize(
    "kinds", [(), (COLLECTIVE_SPEED,), (RANK_LATE,), (COLLECTIVE_SLOW, COLLECTIVE_CORRUPTED)]
)
def test_what_is_sound_or_names_its_cause_is_not(kinds):
    assert not is_localisation_due(run("abcd"), "nccl", lambda: found(*kinds))


def test_a_fault_that_fires_only_between_pairs_has_fired():
    pair = InjectedFault("slow:2-5:20", fired=False)
    first, again = (
        run("abcd", injected=(pair,)),
        run("abcd", injected=(InjectedFault("slow:2-5:20", True, 3.0),)),
    )
    assert add_localisation(first, FAILED, again).injected[0].fired


def test_what_happened_to_its_ranks_is_told_where_it_found_nothing():
    first, again = run("abcd"), run("abcd", IncidentKind.DIED)
    assert [one.kind for one in add_localisation(first, FAILED, again).incidents] == [IncidentKind.DIED]
