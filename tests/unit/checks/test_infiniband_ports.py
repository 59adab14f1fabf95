"""RDMA ports that are down and no fault: virtual functions and cards of another fabric.

Many alike are one finding.
"""

from dataclasses import replace

import pytest

from gpudiag.checks.links.infiniband import infiniband_port
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.host_state import InfinibandPort
from gpudiag.probe.host.interfaces import read_infiniband_ports
from tests.scenarios.situations import changed, look_at_machine, state
from tests.unit.checks.machines import look_at

PORT = InfinibandPort(
    "mlx5_0", 1, "InfiniBand", "ACTIVE", "LinkUp", 400.0, 0, {}, board="MT_0000000838", virtual_function=False
)
EIGHT = tuple(replace(PORT, device=f"mlx5_{place}") for place in range(8))


def down(port, number, **facts):
    values = {"state": "DOWN", "physical_state": "Disabled", **facts}
    return replace(port, device=f"mlx5_{number}", **values)


def judge(*ports):
    snapshot = changed(look_at_machine("h100x8"), (state(infiniband_ports=ports),))
    return infiniband_port.judge(look_at(snapshot))


# NVIDIA/NVSentinel's NIC monitor (16 functions down, expected); cards for storage that no cable leads to.
HEALTHY = {
    "virtual functions": tuple(down(EIGHT[0], 18 + place, virtual_function=True) for place in range(16)),
    "a storage card without a cable": (down(EIGHT[0], 8, board="MT_0000000359", physical_state="Polling"),),
    "both ports of a data processor": tuple(
        down(EIGHT[0], place, board="MT_0000000884", link_layer="InfiniBand") for place in (8, 9)
    ),
    "an Ethernet port that is turned off": (down(EIGHT[0], 8, link_layer="Ethernet"),),
}


@pytest.mark.parametrize("ports", HEALTHY.values(), ids=HEALTHY)
def test_a_port_that_is_not_this_machines_fabric_may_be_down(ports):
    assert judge(*EIGHT, *ports).outcome is Outcome.PASS


def test_a_machine_with_virtual_functions_alone_is_not_judged():
    assert judge(*HEALTHY["virtual functions"]).outcome is Outcome.SKIP


def test_a_port_of_the_same_kind_of_card_is_still_a_fault():
    (finding,) = judge(*EIGHT[:7], down(EIGHT[7], 7)).findings
    assert finding.code == "infiniband.port_disabled"


def test_many_ports_alike_are_one_finding_with_a_count():
    ports = tuple(down(port, place, physical_state="Polling") for place, port in enumerate(EIGHT[:5]))
    (finding,) = judge(*ports, *EIGHT[5:]).findings
    assert (finding.code, isinstance(finding.subject, HostSubject)) == ("infiniband.port_down", True)
    assert finding.message.startswith("5 ports alike (mlx5_0:1, mlx5_1:1, mlx5_2:1 ...): each ")


def test_a_virtual_function_is_known_by_its_physical_one(tmp_path):
    for name, virtual in (("mlx5_0", False), ("mlx5_18", True)):
        port = tmp_path / f"sys/class/infiniband/{name}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("1: DOWN\n")
        (tmp_path / f"sys/class/infiniband/{name}/device{'/physfn' * virtual}").mkdir(parents=True)
    found = {port["device"]: port["virtual_function"] for port in read_infiniband_ports(str(tmp_path))}
    assert found == {"mlx5_0": False, "mlx5_18": True}


@pytest.mark.parametrize(
    ("layer", "state", "manager"),
    [
        ("InfiniBand", "INIT", True),
        ("InfiniBand", "ARMED", True),
        ("InfiniBand", "DOWN", False),
        ("Ethernet", "INIT", False),
    ],
)
def test_a_port_whose_link_is_up_waits_for_the_subnet_manager(layer, state, manager):
    waiting = down(EIGHT[3], 3, state=state, physical_state="LinkUp", link_layer=layer)
    (finding,) = judge(*EIGHT[:3], waiting, *EIGHT[4:]).findings
    assert finding.code == "infiniband.port_down"
    assert ("subnet manager" in finding.remedy) is manager
