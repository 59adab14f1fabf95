"""Ports that are closed: to whom, in which way, and on which ports.

A host, a pair, one way, or rank 0's port alone.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpudiag.checks.ranks.incidents import judge_incidents
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Finding
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.published import HostAddresses, Published
from gpudiag.ranks.diagnosis.firewalls import (
    SAMPLE_PORTS,
    describe_ports,
    failed_ways,
    find_closed_ports,
    is_needed,
    join_unreached,
    master_failures,
)
from gpudiag.ranks.diagnosis.survey import Answer, Purpose, Survey, Target, Try

STALLED = Incident(IncidentKind.STALLED, 0, "machine1", "init", 3.0, ())
PORT, MASTER = 41000, 29500
Ways = Mapping[tuple[int, int], Answer]


def survey(closed: Ways, size: int = 4, master: Mapping[int, Answer] | None = None) -> Survey:
    """`closed` by (who connects, to whom); `master` by who connects to rank 0's port."""
    rows: dict[int, list[Try]] = {}
    for source in range(size):
        rows[source] = []
        for rank in range(size):
            answer = closed.get((source, rank), Answer.REPLIES)
            if rank != source:
                target = Target(rank, f"198.18.77.{rank + 1}", PORT + rank, Purpose.AGENT)
                rows[source].append(Try(target, answer, target.address))
        answer = (master or {}).get(source, Answer.ACCEPTS)
        rows[source].append(Try(Target(0, "machine1", MASTER, Purpose.MASTER), answer, "198.18.77.1"))
    hosts = {rank: f"machine{rank + 1}" for rank in range(size)}
    return Survey(hosts, {}, {}, rows, "gloo", f"machine1:{MASTER}", 0)


def detail(seen: Survey, low: Answer = Answer.REFUSED, high: Answer = Answer.SILENT) -> Survey:
    """What the sample ports of hosts that failed answer: those below 32768, and those above."""
    failed = {*failed_ways(seen), *((source, 0) for source in master_failures(seen))}
    rows: dict[int, list[Try]] = {}
    for source, rank in failed:
        for port in set(SAMPLE_PORTS) - {MASTER}:
            target = Target(rank, f"198.18.77.{rank + 1}", port, Purpose.PORT)
            rows.setdefault(source, []).append(Try(target, low if port < 32768 else high, target.address))
    return Survey(seen.hosts, {}, {}, rows, "gloo", seen.master, 0)


def told(seen: Survey, low: Answer = Answer.REFUSED, high: Answer = Answer.SILENT) -> list[Finding]:
    return list(judge_incidents(find_closed_ports(seen, detail(seen, low, high), STALLED), complete=False))


def ends(finding: Finding) -> list[str]:
    return sorted(getattr(finding.subject, "ends", ()))


def test_open_networks_have_no_closed_ports() -> None:
    assert told(survey({})) == []
    # Rank 0 does not listen yet: nobody reaches its port, not even its own host.
    assert told(survey({}, master=dict.fromkeys(range(4), Answer.REFUSED))) == []


@pytest.mark.parametrize("answer", [Answer.SILENT, Answer.PROHIBITED])
def test_a_host_that_lets_nothing_in_on_high_ports(answer: Answer) -> None:
    (finding,) = told(survey({(source, 2): answer for source in (0, 1, 3)}), high=answer)
    assert (finding.code, finding.subject.host) == ("network.ports_closed", "machine3")
    assert "machine3 accepts no connection of machine1, machine2, machine4" in finding.message
    assert "on ports 32768 to 65535, open: 22 to 25000" in finding.message
    assert ("no answer" if answer is Answer.SILENT else "prohibited") in finding.message
    assert "`nc -vz -w 3 198.18.77.3 41002` on machine1" in finding.remedy
    assert "`nft list ruleset`" in finding.remedy


def test_a_firewall_that_resets_is_told_where_agents_listen() -> None:
    seen = survey({(source, 0): Answer.REFUSED for source in (1, 2, 3)})
    (finding,) = told(seen, low=Answer.ACCEPTS, high=Answer.REFUSED)
    assert finding.subject.host == "machine1"
    assert "on ports 32768 to 65535, open: 22 to 29500 (refused" in finding.message


def test_a_host_that_gets_nothing_out() -> None:
    (finding,) = told(survey({(1, rank): Answer.SILENT for rank in (0, 2, 3)}))
    assert finding.subject.host == "machine2"
    assert "machine2 opens no connection to machine1, machine3, machine4" in finding.message


def test_a_host_closed_both_ways_is_one_finding() -> None:
    ways = {(1, rank): Answer.SILENT for rank in (0, 2, 3)} | {(rank, 1): Answer.SILENT for rank in (0, 2, 3)}
    (finding,) = told(survey(ways))
    assert finding.subject.host == "machine2"
    assert "and opens none to them" in finding.message


def test_a_pair_and_one_way_of_a_pair() -> None:
    (both,) = told(survey({(1, 2): Answer.SILENT, (2, 1): Answer.SILENT}))
    assert (both.code, ends(both)) == ("network.hosts_parted", ["machine2", "machine3"])
    assert "machine2 and machine3 do not reach each other" in both.message
    assert "both still reach machine1, machine4" in both.message
    (way,) = told(survey({(1, 3): Answer.PROHIBITED}), high=Answer.PROHIBITED)
    assert ends(way) == ["machine2", "machine4"]
    assert "machine2 does not reach machine4" in way.message
    assert "and machine4 reaches machine2" in way.message


def test_of_two_hosts_nobody_can_tell_which_is_closed_but_the_way_is_told() -> None:
    (finding,) = told(survey({(0, 1): Answer.SILENT}, size=2))
    assert ends(finding) == ["machine1", "machine2"]
    assert "machine1 does not reach machine2" in finding.message


@pytest.mark.parametrize("answer", [Answer.SILENT, Answer.REFUSED, Answer.PROHIBITED])
def test_the_port_where_ranks_meet_alone(answer: Answer) -> None:
    seen = survey({}, master=dict.fromkeys((1, 2, 3), answer))
    (finding,) = told(seen, high=Answer.REFUSED)
    assert (finding.code, finding.subject.host) == ("network.ports_closed", "machine1")
    assert (
        "the rendezvous port 29500 of machine1 is closed to machine2, machine3, machine4" in finding.message
    )
    assert "Open port 29500" in finding.remedy


def test_the_port_where_ranks_meet_is_closed_to_one() -> None:
    (finding,) = told(survey({}, master={2: Answer.SILENT}), high=Answer.REFUSED)
    assert ends(finding) == ["machine1", "machine3"]
    assert "machine3 does not reach the rendezvous port 29500 of machine1" in finding.message


def test_a_direction_in_which_gloo_never_connects_keeps_nobody_apart() -> None:
    published = {
        rank: HostAddresses((), (Published("gloo", "", "eth0", f"198.18.77.{rank + 1}"),), ())
        for rank in range(4)
    }
    seen = replace(survey({}), addresses=published)
    assert is_needed(seen, (3, 1))
    assert not is_needed(seen, (1, 3))
    assert is_needed(replace(seen, library="NCCL"), (1, 3))
    assert is_needed(survey({}), (1, 3))  # where it is not known what they publish


def unreached(rank: int, obstacle: str, found: str = "") -> Incident:
    facts = (("obstacle", obstacle), ("rank_0", "machine1:29500"), ("found", found))
    evidence = tuple(Evidence(name, value, source="x") for name, value in facts)
    return Incident(IncidentKind.UNREACHED, rank, f"machine{rank + 1}", "rendezvous", 9.0, evidence)


def test_where_no_other_host_reaches_rank_0_s_it_is_that_host_which_is_closed() -> None:
    three = tuple(unreached(rank, "no_answer") for rank in (1, 2, 3))
    (finding,) = judge_incidents(
        join_unreached(three, "machine1", frozenset({"machine1"}), 20123), complete=False
    )
    assert (finding.code, finding.subject.host) == ("network.ports_closed", "machine1")
    assert (
        "machine1 accepts no connection of machine2, machine3, machine4 on port 29500 (no answer"
        in finding.message
    )
    said = tuple(
        unreached(rank, "no_route", "port 29500 of machine1 is prohibited by a firewall") for rank in (1, 2)
    )
    (finding,) = judge_incidents(
        join_unreached(said, "machine1", frozenset({"machine1"}), 20123), complete=False
    )
    assert "(prohibited" in finding.message
    early = tuple(
        unreached(rank, "refused", "machine1 is up, and nothing listens; port 20123 does not answer")
        for rank in (1, 2)
    )
    (finding,) = judge_incidents(
        join_unreached(early, "machine1", frozenset({"machine1"}), 20123), complete=False
    )
    assert "on port 20123 (no answer" in finding.message
    # One host, or one among others that did meet, is closed itself; another server is no firewall.
    assert join_unreached(three[:1], "machine1", frozenset({"machine1"}), 20123) == three[:1]
    assert join_unreached(three[:2], "machine1", frozenset({"machine1", "machine4"}), 20123) == three[:2]
    foreign = tuple(unreached(rank, "foreign_server") for rank in (1, 2, 3))
    assert join_unreached(foreign, "machine1", frozenset({"machine1"}), 20123) == foreign


def test_two_faults_are_two_findings() -> None:
    ways = {(source, 3): Answer.SILENT for source in (0, 1, 2)} | {(0, 1): Answer.SILENT}
    one, other = told(survey(ways))
    assert (one.subject.host, ends(other)) == ("machine4", ["machine1", "machine2"])


def test_ports_are_told_as_ranges() -> None:
    silent, refused = {Answer.SILENT}, {Answer.REFUSED}
    ports = {22: refused, 1024: refused, 20000: silent, 29500: refused, 40000: silent, 65535: silent}
    assert describe_ports(ports, silent) == ("20000, 40000 to 65535", "22 to 1024, 29500")
    assert describe_ports({}, silent) == ("", "")
