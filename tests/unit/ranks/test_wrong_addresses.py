"""Hosts that publish an address which others do not reach; and hosts with several addresses, which nobody may
blame.
"""

from collections.abc import Mapping, Sequence

import pytest

from gpudiag.checks.ranks.incidents import judge_incidents
from gpudiag.model.finding import Finding
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.published import HostAddresses, OwnInterface, gloo_addresses, nccl_addresses
from gpudiag.ranks.diagnosis.addresses import find_wrong_addresses
from gpudiag.ranks.diagnosis.survey import Answer, Purpose, Survey, Target, Try

LO = OwnInterface("lo", True, ("127.0.0.1/8", "::1/128"))
HOSTS = {rank: f"machine{rank + 1}" for rank in range(4)}
STALLED = Incident(IncidentKind.STALLED, 0, "machine1", "init", 3.0, ())
PORT = 40000


def host(
    rank: int, *others: OwnInterface, gloo: str = "eth0", name: Sequence[str] = (), nccl: str = ""
) -> HostAddresses:
    interfaces = (LO, OwnInterface("eth0", False, (f"198.18.77.{rank + 1}/24",)), *others)
    variables = {"GLOO_SOCKET_IFNAME": gloo, "NCCL_SOCKET_IFNAME": nccl}
    return HostAddresses(
        interfaces,
        gloo_addresses(variables, HOSTS[rank], name, interfaces),
        nccl_addresses(variables, interfaces),
        tuple(name),
    )


def survey(
    addresses: Mapping[int, HostAddresses],
    unreached: Mapping[str, Answer] | None = None,
    library: str = "gloo",
    tried: bool = True,
) -> Survey:
    """All reach all at 198.18.77.N, and published addresses but those in `unreached`."""
    everyone = {rank: addresses.get(rank, host(rank)) for rank in HOSTS}
    rows: dict[int, list[Try]] = {rank: [] for rank in HOSTS} if tried else {}
    for source in rows:
        for rank in HOSTS:
            if rank == source:
                continue
            met = f"198.18.77.{rank + 1}"
            rows[source].append(Try(Target(rank, met, PORT, Purpose.AGENT), Answer.REPLIES, met))
            for one in everyone[rank].of(library):
                if one.address not in (None, met):
                    answer = (unreached or {}).get(str(one.address), Answer.REPLIES)
                    target = Target(rank, str(one.address), PORT, Purpose.PUBLISHED)
                    rows[source].append(Try(target, answer, str(one.address)))
    meets_at = {rank: f"198.18.77.{rank + 1}" for rank in HOSTS}
    return Survey(HOSTS, everyone, meets_at, rows, library)


def told(seen: Survey) -> list[Finding]:
    return list(judge_incidents(find_wrong_addresses(seen, STALLED), complete=False))


def eth1(rank: int, network: str = "10.9.0") -> OwnInterface:
    return OwnInterface("eth1", False, (f"{network}.{rank + 1}/24",))


def test_nobody_is_blamed_where_all_publish_what_all_reach() -> None:
    assert told(survey({})) == []
    assert told(survey({rank: host(rank, eth1(rank)) for rank in HOSTS})) == []
    docker = OwnInterface("docker0", False, ("172.17.0.1/16",))
    assert told(survey({rank: host(rank, docker) for rank in HOSTS}, library="NCCL")) == []
    six = OwnInterface("eth6", False, ("fd00:66::3/64",))
    assert told(survey({2: host(2, six)})) == []
    # Another network with a route to it.
    assert told(survey({2: host(2, eth1(2), gloo="eth1")})) == []


def test_an_address_to_which_nobody_has_to_connect_is_no_fault() -> None:
    greater = eth1(2, "203.0.113")
    seen = survey({2: host(2, greater, gloo="eth1")}, {"203.0.113.3": Answer.NO_ROUTE})
    assert told(seen) == []
    on_gpus = survey({2: host(2, greater, nccl="eth1")}, {"203.0.113.3": Answer.NO_ROUTE}, "NCCL")
    assert [one.code for one in told(on_gpus)] == ["network.address_not_reached"]


def test_an_interface_that_does_not_exist() -> None:
    (finding,) = told(survey({2: host(2, gloo="ib9")}))
    assert (finding.code, finding.subject.host) == ("network.wrong_interface", "machine3")
    assert "GLOO_SOCKET_IFNAME=ib9" in finding.message
    assert finding.message.endswith("right is eth0, 198.18.77.3, as on the others")
    assert finding.remedy.startswith("Set GLOO_SOCKET_IFNAME=eth0 for the ranks of machine3")


@pytest.mark.parametrize("answer", [Answer.SILENT, Answer.NO_ROUTE, Answer.REFUSED, Answer.PROHIBITED])
def test_a_lower_address_that_is_not_reached(answer: Answer) -> None:
    seen = survey({3: host(3, eth1(3), gloo="eth1")}, {"10.9.0.4": answer})
    (finding,) = told(seen)
    assert (finding.code, finding.subject.host) == ("network.address_not_reached", "machine4")
    for words in ("GLOO_SOCKET_IFNAME=eth1", "10.9.0.4", "machine1, machine2, machine3 do not reach it"):
        assert words in finding.message
    assert finding.message.endswith("right is eth0, 198.18.77.4, as on the others")


def test_docker_s_bridge_which_others_have_too() -> None:
    docker = OwnInterface("docker0", False, ("172.17.0.1/16",))
    hosts = {rank: host(rank, docker, gloo="docker0" if rank == 1 else "eth0") for rank in HOSTS}
    (finding,) = told(survey(hosts))  # whoever answers there is the host itself
    assert finding.subject.host == "machine2"
    assert "others have the same address themselves" in finding.message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (("127.0.1.1",), "its own name machine3 is 127.0.1.1"),
        ((), "its own name machine3 has no address, so gloo takes 127.0.0.1"),
        (("10.66.0.3",), "is 10.66.0.3, which this host does not have, so gloo takes 127.0.0.1"),
    ],
)
def test_an_own_name_that_leads_to_loopback(name: tuple[str, ...], words: str) -> None:
    (finding,) = told(survey({2: host(2, gloo="", name=name)}))
    assert (finding.code, finding.subject.host) == ("network.name_is_loopback", "machine3")
    assert words in finding.message
    assert "right is eth0, 198.18.77.3" in finding.message
    assert "/etc/hosts" in finding.remedy


def test_an_interface_that_nccl_chose_by_itself() -> None:
    ib = OwnInterface("ib0", False, ("203.0.113.3/24",))
    (finding,) = told(survey({2: host(2, ib)}, {"203.0.113.3": Answer.NO_ROUTE}, "NCCL"))
    assert "on machine3 NCCL chooses ib0, 203.0.113.3" in finding.message
    assert "its own name" not in finding.message + finding.remedy
    (finding,) = told(survey({2: host(2, nccl="=ib9")}, library="NCCL"))
    assert finding.code == "network.wrong_interface"
    assert "NCCL_SOCKET_IFNAME==ib9 names no interface" in finding.message


def test_gloo_connects_only_addresses_of_one_family() -> None:
    six = OwnInterface("eth6", False, ("fd00:66::3/64",))
    (finding,) = told(survey({2: host(2, six, gloo="eth6")}))
    assert finding.subject.host == "machine3"
    assert "IPv4" in finding.message
    assert told(survey({2: host(2, six, nccl="eth6")}, library="NCCL")) == []


def test_of_two_against_two_those_are_named_that_agents_do_not_meet_by() -> None:
    hosts = {rank: host(rank, eth1(rank), gloo="eth1" if rank > 1 else "eth0") for rank in HOSTS}
    seen = survey(hosts, {"10.9.0.3": Answer.SILENT, "10.9.0.4": Answer.SILENT})
    assert [one.subject.host for one in told(seen)] == ["machine3", "machine4"]


def test_where_nothing_can_be_tried_networks_are_compared_for_ranks_that_wait_alone() -> None:
    seen = survey({2: host(2, eth1(2), gloo="eth1")}, tried=False)
    incidents = find_wrong_addresses(seen, STALLED, compare_networks=True)
    (finding,) = judge_incidents(incidents, complete=False)
    assert (finding.subject.host, finding.code) == ("machine3", "network.address_not_reached")
    assert "addresses of another network" in finding.message
    assert find_wrong_addresses(survey({}, tried=False), STALLED, compare_networks=True) == ()
    # Before any rank fails there may be a route between the two networks.
    assert told(seen) == []


def test_one_host_has_nobody_to_meet() -> None:
    alone = Survey({0: "machine1"}, {0: host(0, gloo="lo")}, {}, {}, "gloo")
    assert find_wrong_addresses(alone, STALLED) == ()
