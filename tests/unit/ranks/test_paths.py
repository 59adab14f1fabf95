"""What agents found when they connected to each other, told as one host, a pair, two sides, or nobody."""

from collections.abc import Iterable
from itertools import combinations

import pytest

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis.paths import Contact, Paths, explain

SILENT = Incident(
    IncidentKind.SILENT,
    2,
    "a3",
    "measure",
    4.0,
    (Evidence("agent_silent_for", 2.6, source="agents' connection"),),
)
STALLED = Incident(IncidentKind.STALLED, 0, "a1", "measure", 4.0, ())


def look(
    hosts: int,
    cut: Iterable[tuple[int, int]] = (),
    own: int = 0,
    one_way: Iterable[tuple[int, int]] = (),
    silent: Iterable[int] = (),
    refused: Iterable[tuple[int, int]] = (),
) -> Paths:
    """What agent `own` gathers: its own row, and those of agents that it reaches and that reply."""
    lost = {frozenset(pair) for pair in cut}

    def contact(source: int, target: int) -> Contact:
        if frozenset((source, target)) in lost or (source, target) in set(one_way):
            return Contact.NO_ANSWER
        if (source, target) in set(refused):
            return Contact.REFUSED
        return Contact.HUNG if target in set(silent) else Contact.REPLIES

    everyone = range(hosts)
    rows = {
        source: {target: contact(source, target) for target in everyone if target != source}
        for source in everyone
        if source == own or contact(own, source) is Contact.REPLIES
    }
    return Paths(own, {rank: f"a{rank + 1}" for rank in everyone}, rows)


def told(paths: Paths, *incidents: Incident) -> list[tuple[IncidentKind, str]]:
    explained = explain(incidents or (STALLED,), paths)
    assert explained is not None
    return [(one.kind, one.host) for one in explained]


def facts(paths: Paths) -> dict[str, object]:
    explained = explain((STALLED,), paths)
    assert explained
    return {fact.name: fact.value for fact in explained[0].evidence}


@pytest.mark.parametrize("hosts", [3, 4, 5, 9])
def test_every_host_that_is_cut_off_is_named_by_every_other_and_by_itself(hosts: int) -> None:
    for gone in range(hosts):
        cut = [(gone, other) for other in range(hosts) if other != gone]
        for own in range(hosts):
            assert told(look(hosts, cut, own)) == [(IncidentKind.CUT_OFF, f"a{gone + 1}")]


@pytest.mark.parametrize("hosts", [3, 4, 5, 9])
def test_every_pair_is_named_from_every_host(hosts: int) -> None:
    for one, other in combinations(range(hosts), 2):
        for own in range(hosts):
            paths = look(hosts, [(one, other)], own)
            assert told(paths) == [(IncidentKind.PARTED, f"a{other + 1}")]
            assert facts(paths)["one_side"] == f"a{one + 1}"
            if hosts > 3 or own not in (one, other):
                assert "reached_both" in facts(paths)


def test_a_drop_in_one_direction_is_a_cut_pair() -> None:
    paths = look(4, one_way=[(1, 2)])
    assert told(paths) == [(IncidentKind.PARTED, "a3")]
    assert "a2 to a3: no answer" in str(facts(paths)["tried"])
    assert "a3 to a2: connects and replies" in str(facts(paths)["tried"])


def test_a_firewall_that_refuses_in_the_name_of_a_host_that_lives_is_a_cut() -> None:
    assert told(look(4, refused=[(1, 2)])) == [(IncidentKind.PARTED, "a3")]


def test_two_hosts_or_two_equal_sides_blame_nobody() -> None:
    assert told(look(2, [(0, 1)])) == [(IncidentKind.PARTED, "a2")]
    sides = look(4, [(0, 2), (0, 3), (1, 2), (1, 3)])
    assert told(sides) == [(IncidentKind.PARTED, "a3")]
    assert (facts(sides)["one_side"], facts(sides)["other_side"]) == ("a1, a2", "a3, a4")


def test_the_smaller_side_is_the_one_that_is_cut_off_whoever_looks() -> None:
    cut = [(one, other) for one in (0, 1) for other in (2, 3, 4)]
    for own in range(5):
        assert told(look(5, cut, own)) == [(IncidentKind.CUT_OFF, "a1"), (IncidentKind.CUT_OFF, "a2")]


def test_a_host_that_only_this_one_has_tried_is_no_more_than_a_pair() -> None:
    """The agents of the others have ended, as they do once they have reported."""
    rows = {2: {0: Contact.NO_ANSWER, 1: Contact.REFUSED, 3: Contact.REFUSED}}
    paths = Paths(2, {rank: f"a{rank + 1}" for rank in range(4)}, rows)
    assert told(paths) == [(IncidentKind.PARTED, "a3")]
    assert (facts(paths)["one_side"], facts(paths)["other_side"]) == ("a1", "a3")
    assert "reached_both" not in facts(paths)


def test_what_was_not_seen_is_said() -> None:
    cut = [(3, other) for other in range(3)]
    assert facts(look(4, cut, own=0))["not_seen"] == "how the ranks there ended"
    assert facts(look(4, cut, own=3))["not_seen"] == "what the other hosts did after that"


def test_a_stopped_process_is_no_cut_and_its_port_is_told() -> None:
    explained = explain((SILENT,), look(4, silent=[2]))
    assert explained is not None
    (incident,) = explained
    assert incident.kind is IncidentKind.SILENT
    assert incident.evidence[-1].value == "connects, and the process does not reply"


def test_an_agent_that_replies_is_excused_for_a_while_and_then_no_more() -> None:
    assert explain((SILENT,), look(4)) == ()
    long = Incident(
        IncidentKind.SILENT, 2, "a3", "measure", 4.0, (Evidence("agent_silent_for", 11.0, source="agents"),)
    )
    explained = explain((long,), look(4))
    assert explained
    assert explained[0].kind is IncidentKind.SILENT


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (IncidentKind.DIED, "signal", "SIGKILL"),
        (IncidentKind.RAISED, "message", "CUDA error: an illegal memory access was encountered"),
        (IncidentKind.MISMATCHED, "operation", "broadcast"),
        (IncidentKind.STOPPED, "process_state", "stopped by a signal"),
    ],
)
def test_what_the_network_does_not_explain_stays_the_cause(kind: IncidentKind, name: str, value: str) -> None:
    seen = Incident(kind, 1, "a2", "measure", 4.0, (Evidence(name, value, source="agent"),))
    assert explain((seen,), look(4, [(1, 2)])) is None


def test_a_broken_connection_is_a_consequence_of_the_cut() -> None:
    message = Evidence("message", "Connection closed by peer [198.18.77.3]:4711", source="exception")
    raised = Incident(IncidentKind.RAISED, 1, "a2", "measure", 4.0, (message,))
    assert told(look(4, [(1, 2)]), raised) == [(IncidentKind.PARTED, "a3")]


def test_a_cut_counts_once_it_is_found_again() -> None:
    whole, one, other = look(4), look(4, [(1, 2)]), look(4, [(0, 3)])
    assert one.lasting_cuts(one)
    assert not one.lasting_cuts(other)
    assert not one.lasting_cuts(whole)
    assert whole.is_whole
    assert not one.is_whole
