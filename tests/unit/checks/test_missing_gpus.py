"""What a display function on the bus that NVML does not list means: a fault, or a function that is not this
machine's.

The healthy ones are public reports, named behind each.
"""

from dataclasses import replace

import pytest

from gpudiag.checks.gpu.devices import gpu_count, gpu_started
from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.model.device import SourceState
from gpudiag.model.finding import Outcome
from gpudiag.model.host import own_gpus
from gpudiag.probe.sources import rows_of_pci
from gpudiag.probe.visibility import explain_given
from tests.kernel_lines import parse_kernel_lines
from tests.unit.checks.machines import ABSENT, CONTAINER, look_at, make_bare_machine, make_eight, make_pci_gpu
from tests.unit.model.nouns import TAKEN_AT, make_device, make_snapshot

GT710 = replace(make_pci_gpu(0), bus_id="00000000:03:00.0", device_id="128b", driver=ABSENT)
GTX1070 = replace(
    make_pci_gpu(0), bus_id="00000000:07:00.0", device_id="1b81", class_id="0300", driver=ABSENT
)
GIVEN = replace(make_pci_gpu(0), bus_id="00000000:e1:00.0", driver="vfio-pci")
VIRTUAL = tuple(
    replace(
        make_pci_gpu(0),
        bus_id=f"00000000:19:00.{place}",
        device_id="26b9",
        driver="nvidia",
        virtual_function=True,
    )
    for place in range(4, 8)
)
# Before the kernel had made its link.
OF_THE_BOARD = tuple(replace(one, virtual_function=False) for one in VIRTUAL)
ELSEWHERE = replace(make_pci_gpu(0), bus_id="00000000:1a:00.4", driver=ABSENT, virtual_function=True)

HEALTHY = {
    "virtual functions of a vGPU host (harvester issue 6487)": VIRTUAL,
    "the same without physfn, on the GPU's own bus (cubecos issue 312)": OF_THE_BOARD,
    "virtual functions that no driver has yet (kubevirt pull 16890)": (ELSEWHERE,),
    "GPUs given to virtual machines (kubevirt-gpu-device-plugin issue 45)": (GIVEN,),
    "a GT 710 for the display, ignored by driver 580 (talos issue 8764)": (GT710,),
    "a GTX 1070 that branch 595 ignores (nixos-hardware issue 1880)": (GTX1070,),
}
IGNORED = (
    "NVRM: ignoring the legacy GPU 0000:07:00.0",
    "nvidia 0000:07:00.0: probe with driver nvidia failed with error -1",
    "NVRM: The NVIDIA probe routine failed for 1 device(s).",
)
NOT_OPEN = (
    "NVRM: The NVIDIA GPU 0000:07:00.0 (PCI ID: 10de:1b81)",
    "NVRM: installed in this system is not supported by open",
    "NVRM: nvidia.ko because it does not include the required GPU",
    "nvidia: probe of 0000:07:00.0 failed with error -1",
    "NVRM: The NVIDIA probe routine failed for 1 device(s).",
)
LEGACY = (
    "NVRM: The NVIDIA GeForce GT 710 GPU installed in this system is",
    "NVRM:  supported through the NVIDIA 470.xx Legacy drivers. Please",
    "nvidia: probe of 0000:07:00.0 failed with error -1",
)


def eight_and(*functions, **facts):
    machine = make_bare_machine(gpus=8, **facts)
    return make_snapshot(
        *make_eight(), machine=replace(machine, pci_devices=(*machine.pci_devices, *functions))
    )


def log(*lines):
    return tuple(parse_kernel_lines((TAKEN_AT, line) for line in lines))


@pytest.mark.parametrize("functions", HEALTHY.values(), ids=HEALTHY)
def test_a_function_that_is_not_this_machines_is_not_missing(functions):
    snapshot = eight_and(*functions)
    assert gpu_count.judge(look_at(snapshot)).outcome is Outcome.PASS
    assert rows_of_pci(snapshot.devices, snapshot.machine, SourceState.OK, "", {}) == ()
    assert len(own_gpus(snapshot.machine.pci_devices)) == 8


@pytest.mark.parametrize("lines", [IGNORED, NOT_OPEN], ids=["legacy", "open modules"])
def test_a_card_that_the_driver_ignores_has_not_failed_to_start(lines):
    snapshot = replace(eight_and(GTX1070), kernel_log=log(*lines))
    assert gpu_started.judge(look_at(snapshot)).outcome is Outcome.PASS
    assert gpu_count.judge(look_at(snapshot)).outcome is Outcome.PASS


def test_the_lines_about_legacy_cards_are_read():
    assert [event.kind.value for event in log(*LEGACY)] == ["gpu_ignored", "gpu_not_started"]
    assert log(*NOT_OPEN)[0].bus_id == "00000000:07:00.0"


def test_a_gpu_outside_a_jobs_control_group_is_not_missing():
    """A shell by pam_slurm_adopt has the job's devices, and none of its variables."""
    machine = make_bare_machine(gpus=8, job_cgroup="Slurm job 7")
    snapshot = make_snapshot(*make_eight()[:2], machine=machine)
    assert gpu_count.judge(look_at(snapshot)).outcome is Outcome.PASS


def test_gpus_without_a_device_node_were_not_given():
    """canonical/lxd issue 8277: one of eight GPUs in an LXC container that shows no other sign of one."""
    machine = make_bare_machine(gpus=8, device_nodes=("/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"))
    snapshot = make_snapshot(make_device(3), machine=machine)
    assert gpu_count.judge(look_at(snapshot)).outcome is Outcome.PASS
    assert explain_given(machine, 1) is not None


def test_a_guest_with_confidential_computing_has_hidden_functions():
    snapshot = make_snapshot(
        *make_eight()[:7], machine=make_bare_machine(gpus=8), confidential_computing="enabled"
    )
    assert gpu_count.judge(look_at(snapshot)).outcome is Outcome.PASS


def test_a_container_still_counts_its_nodes():
    machine = make_bare_machine(gpus=8, container=CONTAINER, device_nodes=("/dev/nvidia0", "/dev/nvidia1"))
    snapshot = make_snapshot(make_device(0), machine=machine)
    assert [finding.code for finding in gpu_count.judge(look_at(snapshot)).findings] == ["gpu.count"]


UNBOUND = replace(make_pci_gpu(7), driver=ABSENT)


def seven_and_unbound(**facts):
    machine = make_bare_machine(gpus=7)
    machine = replace(machine, pci_devices=(*machine.pci_devices, UNBOUND))
    return make_snapshot(*make_eight()[:7], machine=machine, **facts)


def test_a_gpu_that_no_driver_has_is_missing_where_it_failed_to_start_or_was_here_before():
    def found(snapshot, **known):
        return [finding.code for finding in gpu_count.judge(look_at(snapshot, **known)).findings]

    assert found(seven_and_unbound()) == []
    failed = f"NVRM: GPU {UNBOUND.bus_id[4:]}: RmInitAdapter failed! (0x24:0x72:1447)"
    assert found(seven_and_unbound(kernel_log=log(failed))) == ["gpu.missing"]
    assert found(seven_and_unbound(), known_gpus=known_gpus_of(make_snapshot(*make_eight()))) == [
        "gpu.missing"
    ]


def test_many_missing_alike_are_one_finding_with_a_count():
    snapshot = make_snapshot(*make_eight()[:2], machine=make_bare_machine(gpus=8))
    (finding,) = gpu_count.judge(look_at(snapshot)).findings
    assert (finding.code, finding.evidence[0].value) == ("gpu.missing", 6)
    assert finding.message.startswith("6 GPUs are on the PCI bus")


def test_without_a_variable_no_gpu_was_taken_away() -> None:
    """A driver that lists none of the GPUs on the bus has lost them all."""
    for allocation in ({}, {"NVIDIA_VISIBLE_DEVICES": ""}, {"NVIDIA_VISIBLE_DEVICES": "all"}):
        assert explain_given(make_bare_machine(gpus=2, allocation=allocation), 0) is None
