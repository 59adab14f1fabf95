"""Hosts whose own network keeps them from another one: an address twice, or a route by another interface."""

from collections.abc import Mapping
from dataclasses import replace

from gpudiag.checks.ranks.incidents import judge_incidents
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.published import HostAddresses, OwnInterface
from gpudiag.ranks.diagnosis.conflicts import find_conflicts
from gpudiag.ranks.diagnosis.survey import Answer, Purpose, Survey, Target, Try

HOSTS = {rank: f"machine{rank + 1}" for rank in range(4)}
STALLED = Incident(IncidentKind.STALLED, 0, "machine1", "init", 3.0, ())
DOCKER = OwnInterface("docker0", False, ("198.18.77.5/30",))


def eth0(rank: int, hardware: str = "") -> OwnInterface:
    return OwnInterface(
        "eth0", False, (f"198.18.77.{rank + 1}/24",), hardware or f"02:00:00:00:00:0{rank + 1}"
    )


def told(
    odd: Mapping[int, tuple[OwnInterface, ...]], *ways: tuple[int, int], sent_from: str = ""
) -> list[tuple[str, str, str]]:
    """Code, host and message, where these ways fail, and these hosts have other interfaces than eth0."""
    addresses = {rank: HostAddresses(odd.get(rank, (eth0(rank),)), (), ()) for rank in HOSTS}
    known = {rank: f"198.18.77.{rank + 1}" for rank in HOSTS}
    survey = Survey(HOSTS, addresses, known, {}, "gloo")
    failed = [
        (way, Try(Target(way[1], known[way[1]], 40000, Purpose.AGENT), Answer.SILENT, sent_from=sent_from))
        for way in ways
    ]
    found = judge_incidents(find_conflicts(survey, failed, STALLED), complete=False)
    return [(one.code, str(getattr(one.subject, "host", "")), one.message) for one in found]


def test_a_host_that_has_the_address_of_another_one_is_named_with_it() -> None:
    both = replace(eth0(2), addresses=("198.18.77.3/24", "198.18.77.4/24"))
    words = "eth0 on machine3 has 198.18.77.4, which is the address of machine4: they do not reach each other"
    assert told({2: (both,)}, (2, 3), (3, 2)) == [("network.setup_conflict", "machine3", words)]


def test_two_hosts_with_one_hardware_address_are_one_conflict() -> None:
    twin = "02:00:00:00:00:77"
    ((_, host, message),) = told({2: (eth0(2, twin),), 3: (eth0(3, twin),)}, (2, 3), (3, 2))
    assert host == "machine4"
    assert message.startswith(f"eth0 on machine4 has the hardware address {twin}, and machine3 has the same")
    assert told({2: (replace(eth0(2), hardware=""),), 3: (replace(eth0(3), hardware=""),)}, (2, 3)) == []


def test_what_leaves_by_another_interface_than_that_of_the_others_network_is_a_conflict() -> None:
    ((_, host, message),) = told({2: (eth0(2), DOCKER)}, (2, 3), (2, 1), sent_from="198.18.77.5")
    assert host == "machine3"
    assert message == (
        "machine3 sends what is for machine2, machine4 by docker0 (198.18.77.5/30); the others know it by"
        " eth0 (198.18.77.3/24), which is in the network of machine2, machine4"
    )


def test_a_way_that_fails_for_another_reason_is_no_conflict() -> None:
    assert told({}, (2, 3), (3, 2), sent_from="198.18.77.3") == []
    assert told({2: (eth0(2), DOCKER)}, (2, 3), sent_from="198.18.77.3") == []
    # The other one is not in the network by which this host is known: another interface is right.
    routed = replace(eth0(2), addresses=("198.18.77.3/31",))
    assert told({2: (routed, DOCKER)}, (2, 3), sent_from="198.18.77.5") == []
