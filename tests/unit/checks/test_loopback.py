"""Which exceptions of ranks are told as the host's loopback interface, and which stay the rank's own."""

import pytest

from gpudiag.checks.host.network import LOOPBACK_DOWN, judge_interfaces
from gpudiag.checks.ranks.incident_kinds import RANK_RAISED
from gpudiag.checks.ranks.incidents import judge_incidents
from gpudiag.checks.software.settings import INTERFACE_ABSENT
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject
from gpudiag.model.host import NetworkInterface
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.reading import NOT_ASKED
from tests.unit.model.nouns import make_machine

GLOO = "[enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: "


def interface(*, loopback: bool = True, up: bool = True, address: str = "127.0.0.1") -> NetworkInterface:
    addresses = (address,) if address else ()
    return NetworkInterface("lo" if loopback else "eth0", up, loopback, 1500, NOT_ASKED, addresses)


def raised(rank: int, interface: str, host: str = "a1") -> Incident:
    message = Evidence("message", GLOO + interface, source="exception")
    return Incident(IncidentKind.RAISED, rank, host, "init", 1.0 + rank, (message,))


def test_every_host_has_one_finding_that_names_its_ranks() -> None:
    incidents = (raised(2, "lo", "a2"), raised(1, "lo"), raised(0, "lo"))
    first, second = judge_incidents(incidents, complete=False)
    assert (first.code, first.subject) == (LOOPBACK_DOWN.code, HostSubject("a1"))
    assert (second.code, second.subject) == (LOOPBACK_DOWN.code, HostSubject("a2"))
    assert first.evidence[0] == Evidence("ranks", "0 and 1", source="ranks that raised")


@pytest.mark.parametrize("interface", ["eth9", "lo1"])
def test_another_interface_is_the_users_choice_and_is_told_by_its_name(interface: str) -> None:
    (finding,) = judge_incidents((raised(0, interface),), complete=False)
    assert (finding.code, finding.subject) == (INTERFACE_ABSENT.code, HostSubject("a1"))
    assert f"GLOO_SOCKET_IFNAME is {interface}" in finding.message


def test_no_interface_at_all_stays_the_ranks_exception() -> None:
    (finding,) = judge_incidents((raised(0, ""),), complete=False)
    assert (finding.code, finding.subject) == (RANK_RAISED.code, RankSubject(0, "a1"))


def test_another_ranks_own_exception_is_told_behind_it() -> None:
    findings = judge_incidents((raised(0, "eth9"), raised(1, "lo")), complete=False)
    assert [finding.code for finding in findings] == [LOOPBACK_DOWN.code, INTERFACE_ABSENT.code]


@pytest.mark.parametrize("broken", [interface(up=False), interface(address="")])
def test_a_loopback_that_leads_nowhere_is_seen_before_ranks_are_started(broken: NetworkInterface) -> None:
    finding = judge_interfaces(make_machine(interfaces=(interface(loopback=False), broken)))
    assert finding is not None
    assert (finding.code, finding.subject.kind) == (LOOPBACK_DOWN.code, "host")


@pytest.mark.parametrize(
    "interfaces", [(interface(),), (interface(loopback=False, up=False),), (), NOT_ASKED]
)
def test_one_that_works_or_that_nobody_shows_is_no_fault(interfaces: object) -> None:
    assert judge_interfaces(make_machine(interfaces=interfaces)) is None
