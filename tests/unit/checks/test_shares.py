"""A job that was given a part of a machine is judged by that part."""

from dataclasses import replace

from gpudiag.checks.host.health import host_numa
from gpudiag.checks.host.limits import host_cgroup, host_shared_memory
from gpudiag.checks.links.infiniband import infiniband_peer_memory
from gpudiag.checks.links.nvlink import nvlink_state
from gpudiag.model.context import Context
from gpudiag.model.device import NvLink
from gpudiag.model.finding import Outcome
from gpudiag.model.host_state import CgroupLimits, HostState, InfinibandPort, NumaNode, ProcessorLayout
from gpudiag.units import MIB
from tests.unit.model.nouns import NOT_SUPPORTED, make_device, make_machine, make_snapshot

LAYOUT = ProcessorLayout("4-7", (NumaNode(0, "0-3"), NumaNode(1, "4-7")), NOT_SUPPORTED, False)
CGROUP = CgroupLimits("/job", None, NOT_SUPPORTED, 4.0, None)
SLURM = {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURM_GPUS_ON_NODE": "4"}


def make_state(**readings):
    values = dict.fromkeys(HostState.__dataclass_fields__, NOT_SUPPORTED)
    return HostState(**{**values, "processor_layout": LAYOUT, "cgroup": CGROUP, **readings})


def make_context(*devices, allocation=None, **facts):
    machine = make_machine(state=make_state(), allocation=allocation or {}, **facts)
    return Context(make_snapshot(*devices, machine=machine))


def eight(**readings):
    return [make_device(place, numa_node=place // 4, **readings) for place in range(8)]


def test_processors_need_not_be_near_gpus_that_the_job_was_not_given():
    assert host_numa.judge(make_context(*eight(), allocation=SLURM)).outcome is Outcome.PASS
    assert len(host_numa.judge(make_context(*eight())).findings) == 4


def test_processors_and_shared_memory_are_counted_for_the_gpus_that_were_given():
    facts = {"logical_processors_allowed": 4, "shared_memory_total_bytes": 300 * MIB}
    given, whole = make_context(*eight(), allocation=SLURM, **facts), make_context(*eight(), **facts)
    assert [finding.code for finding in host_cgroup.judge(given).findings] == []
    assert [finding.code for finding in host_cgroup.judge(whole).findings] == ["host.processors_few"]
    assert [finding.code for finding in host_shared_memory.judge(given).findings] == [
        "host.shared_memory_small"
    ]
    assert [finding.code for finding in host_shared_memory.judge(whole).findings] == [
        "host.shared_memory_too_small"
    ]


def links(*active: bool):
    return tuple(NvLink(number, up, NOT_SUPPORTED, 0, 0, 0, 0) for number, up in enumerate(active))


def test_a_card_without_a_bridge_is_no_fault_and_one_with_half_of_it_is():
    bridged = [
        make_device(place, name="NVIDIA A100 80GB PCIe", nvlinks=links(True, True)) for place in range(2)
    ]
    alone = make_device(2, name="NVIDIA A100 80GB PCIe", nvlinks=links(False, False))
    half = make_device(3, name="NVIDIA A100 80GB PCIe", nvlinks=links(True, False))
    assert nvlink_state.judge(make_context(*bridged, alone)).outcome is Outcome.PASS
    (finding,) = nvlink_state.judge(make_context(*bridged, half)).findings
    assert (finding.code, finding.subject.nvml_index) == ("nvlink.link_down", 3)


def test_cards_of_another_kind_need_no_peer_memory_module():
    port = InfinibandPort("efa_0", 1, "Unspecified", "ACTIVE", "LinkUp", 100.0, NOT_SUPPORTED, {})
    context = make_context(make_device(0), kernel_modules=("nvidia",), kernel_driver_flavor="proprietary")
    state = make_state(infiniband_ports=(port,))
    snapshot = replace(context.snapshot, machine=replace(context.snapshot.machine, state=state))
    assert infiniband_peer_memory.judge(Context(snapshot)).outcome is Outcome.SKIP
    mellanox = make_state(infiniband_ports=(replace(port, device="mlx5_0"),))
    snapshot = replace(snapshot, machine=replace(snapshot.machine, state=mellanox))
    assert infiniband_peer_memory.judge(Context(snapshot)).outcome is Outcome.WARN


def test_without_the_kernels_counts_the_gpus_own_are_taken():
    from gpudiag.checks.links.pcie import pcie_errors
    from gpudiag.model.device import PcieErrorCounts

    counts = PcieErrorCounts(0, 0, 1, 0, 0, 0, 0)
    (finding,) = pcie_errors.judge(make_context(make_device(0, pcie_errors=counts))).findings
    assert (finding.code, finding.evidence[0].source) == (
        "pcie.fatal_error_since_boot",
        "NVML's PCIe counters",
    )
    assert pcie_errors.judge(make_context(make_device(0))).outcome is Outcome.SKIP


def test_encrypted_copies_are_not_held_against_the_link():
    from gpudiag.checks.ranks.bandwidth import bandwidth_host_device

    context = make_context(make_device(0))
    snapshot = replace(context.snapshot, confidential_computing="enabled")
    assert bandwidth_host_device.judge(Context(snapshot)).outcome is Outcome.SKIP
