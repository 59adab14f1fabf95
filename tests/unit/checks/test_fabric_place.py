"""The fabric: its status in words, a remedy by where it is managed, racks without a domain, boards without a
GPU.
"""

from dataclasses import replace

import pytest

from gpudiag.checks.gpu.board import find_shortage, gpu_board
from gpudiag.checks.links.fabric import fabric_state
from gpudiag.checks.links.fabric_place import describe_status
from gpudiag.model.device import FabricState
from gpudiag.model.finding import Outcome
from gpudiag.reference.nvml import return_texts
from tests.scenarios.situations import changed, look_at_machine, machine, part, without_gpu
from tests.unit.checks.machines import CONTAINER, look_at
from tests.walking import walk

ZERO = "00000000-0000-0000-0000-000000000000"


def unready(base, count, **facts):
    changes = [part(index, "fabric", state="in_progress", **facts) for index in range(count)]
    return changed(look_at_machine(base), tuple(changes))


def finding_of(snapshot):
    (finding,) = fabric_state.judge(look_at(snapshot)).findings
    return finding


@walk(sorted(return_texts()), str)
def test_every_status_is_said_in_nvmls_words(number):
    words = describe_status(FabricState("completed", f"error_{number}", 0, ZERO, "healthy", ()))
    assert words == f"completed, {return_texts()[number].lower()}"


def test_a_full_partition_is_named():
    """Azure/azhpc-images pull 506: `Completed`, `Insufficient Resources`, zero UUID."""
    snapshot = changed(
        look_at_machine("h100x8"), tuple(part(index, "fabric", status="error_23") for index in range(8))
    )
    assert "insufficient resources" in finding_of(snapshot).message.lower()


# gpu-operator issue 2781 (modules), gpud pull 1106 (trays), the Fabric Manager user guide (guests).
REMEDIES = {
    "host": ("h100x8", 8, (), "systemctl status nvidia-fabricmanager"),
    "rack": ("gb200x4", 4, (), "switch trays"),
    "rack of GB300": ("gb300x4", 4, (), "nvidia-imex-ctl"),
    "modules": (
        "b200x8",
        8,
        (machine(kernel_modules=("nvidia", "nvidia_uvm")),),
        "modprobe -a mlx5_ib ib_umad",
    ),
    "container": ("h100x8", 8, (machine(container=CONTAINER),), "on the host of this container"),
}


@pytest.mark.parametrize(("base", "count", "changes", "words"), REMEDIES.values(), ids=REMEDIES)
def test_the_remedy_is_for_where_the_fabric_is_managed(base, count, changes, words):
    assert words in finding_of(changed(unready(base, count), changes)).remedy


def test_a_whole_b200_with_its_modules_is_not_told_to_load_them():
    finding = finding_of(unready("b200x8", 8))
    assert "modprobe" not in finding.remedy
    assert "kernel modules" not in finding.message


@pytest.mark.parametrize("zero", [{"cluster_uuid": ZERO}, {"clique_id": 0}], ids=["UUID", "clique"])
@pytest.mark.parametrize("base", ["gb200x4", "gb300x4"])
def test_a_tray_outside_of_every_domain_does_not_pass(base, zero):
    snapshot = changed(look_at_machine(base), tuple(part(index, "fabric", **zero) for index in range(4)))
    judgement = fabric_state.judge(look_at(snapshot))
    assert judgement.outcome is Outcome.WARN
    assert {finding.code for finding in judgement.findings} == {"fabric.no_domain"}


@pytest.mark.parametrize("base", ["h100x8", "h200x8", "b200x8"])
def test_a_machine_without_a_rack_has_a_zero_domain_and_passes(base):
    assert fabric_state.judge(look_at(look_at_machine(base))).outcome is Outcome.PASS


# gpu-operator issue 2511: 7 of 8 GPUs of an HGX B200; trays of three, boards of five.
SHORT = {
    "h100x8": (8, 7),
    "h200x8": (8, 7),
    "b200x8": (8, 7),
    "a100x8": (8, 7),
    "gb200x4": (4, 3),
    "gb300x4": (4, 3),
}


@walk(sorted(SHORT), str)
def test_a_board_without_one_of_its_gpus_is_named_without_any_history(base):
    look = look_at_machine(base)
    assert find_shortage(look) is None
    _, whole, here = find_shortage(changed(look, (without_gpu(2),)))
    assert (whole, here) == SHORT[base]


@pytest.mark.parametrize(
    "base", ["l40sx8", "rtx4090x2", "t4x1", "h100-vm", "h200-vm", "a100x16", "h100x8-container2", "gh200"]
)
def test_a_part_of_a_board_that_was_given_is_no_shortage(base):
    assert gpu_board.judge(look_at(look_at_machine(base))).outcome in (Outcome.PASS, Outcome.SKIP)


def test_gpus_of_virtual_machines_count():
    look = look_at_machine("b200x8")
    functions = tuple(
        replace(one, driver="vfio-pci") if one.bus_id == look.devices[5].id.bus_id else one
        for one in look.machine.pci_devices
    )
    given = changed(look, (without_gpu(5), machine(pci_devices=functions)))
    assert gpu_board.judge(look_at(given)).outcome is Outcome.PASS
