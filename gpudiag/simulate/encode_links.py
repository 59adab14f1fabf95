"""How a GPU is connected: PCIe, NVLink, and what lies between two GPUs."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpudiag.reference.nvml import constant
from gpudiag.simulate.answers import AnswerTable, Refusal, u32, u64
from gpudiag.simulate.encode_identity import pack_pci_info
from gpudiag.simulate.gpu_answers import GpuAnswers, PlacedGpu, read_member

_ERROR_COUNTERS = {  # nvmlNvLinkErrorCounter_t, and how the field ids spell them
    "replay_errors": (constant("NVML_NVLINK_ERROR_DL_REPLAY"), "REPLAY"),
    "recovery_errors": (constant("NVML_NVLINK_ERROR_DL_RECOVERY"), "RECOVERY"),
    "crc_flit_errors": (constant("NVML_NVLINK_ERROR_DL_CRC_FLIT"), "CRC_FLIT"),
    "crc_data_errors": (constant("NVML_NVLINK_ERROR_DL_CRC_DATA"), "CRC_DATA"),
}
_SCOPED_FIELDS = {
    "replay_errors": "DEV_NVLINK_ERROR_DL_REPLAY",
    "recovery_errors": "DEV_NVLINK_ERROR_DL_RECOVERY",
    "crc_flit_errors": "DEV_NVLINK_ERROR_DL_CRC",
}
_LINKS_WITH_FIELDS = 12  # NVML_FI_DEV_NVLINK_*_L0 to _L11
_P2P_READ, _P2P_WRITE, _P2P_NVLINK, _P2P_ATOMICS, _P2P_PCI = 0, 1, 2, 3, 4  # nvmlGpuP2PCapsIndex_t


def encode_pcie(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer the GPU's PCIe link: now, at most by itself, at most in its slot."""
    answers = GpuAnswers(table, placed.subject)
    answers.reply("nvmlDeviceGetCurrPcieLinkGeneration", placed.read("pcie_generation"))
    answers.reply("nvmlDeviceGetGpuMaxPcieLinkGeneration", placed.read("pcie_generation_gpu_max"))
    answers.reply("nvmlDeviceGetMaxPcieLinkGeneration", _link_maximum(placed, "pcie_generation"))
    answers.reply("nvmlDeviceGetCurrPcieLinkWidth", placed.read("pcie_width"))
    answers.reply("nvmlDeviceGetMaxPcieLinkWidth", _link_maximum(placed, "pcie_width"))
    replays = placed.read("pcie_replay_count")
    answers.reply("nvmlDeviceGetPcieReplayCounter", replays)
    answers.reply_field("DEV_PCIE_REPLAY_COUNTER", replays)


def _link_maximum(placed: PlacedGpu, name: str) -> Any:
    """What the link can reach with this GPU in this slot: the smaller of the two limits."""
    by_gpu, by_slot = placed.read(f"{name}_gpu_max"), placed.read(f"{name}_slot_max")
    if isinstance(by_gpu, Refusal) or isinstance(by_slot, Refusal):
        return by_slot if isinstance(by_gpu, Refusal) else by_gpu
    return min(by_gpu, by_slot)


def encode_nvlinks(placed: PlacedGpu, gpus: Sequence[PlacedGpu], table: AnswerTable) -> None:
    """Answer the state, the far end and the error counters of each of the GPU's NVLinks."""
    answers = GpuAnswers(table, placed.subject)
    links = placed.read("nvlinks")
    if isinstance(links, Refusal):
        for function in (
            "nvmlDeviceGetNvLinkState",
            "nvmlDeviceGetNvLinkErrorCounter",
            "nvmlDeviceGetNvLinkRemotePciInfo",
            "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        ):
            table.refuse_all(function, placed.subject, links)
        answers.reply_field("DEV_NVLINK_LINK_COUNT", links)
        return
    answers.reply_field("DEV_NVLINK_LINK_COUNT", len(links))
    gpu_bus_ids = {gpu.gpu.readings.get("bus_id") for gpu in gpus}
    for link in links:
        _encode_link(answers, link, gpu_bus_ids)
    for name, (_number, word) in _ERROR_COUNTERS.items():
        answers.reply_field(f"DEV_NVLINK_{word}_ERROR_COUNT_TOTAL", _total(links, name), wide=True)


def _encode_link(answers: GpuAnswers, link: Mapping[str, Any], gpu_bus_ids: set[str | None]) -> None:
    number = link["link"]
    active, remote = read_member(link, "active"), read_member(link, "remote_bus_id")
    answers.reply("nvmlDeviceGetNvLinkState", active, keys=(number,))
    answers.reply_field("DEV_NVLINK_GET_STATE", active, scope=number)
    for function in ("nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetNvLinkRemotePciInfo_v2"):
        answers.reply(function, remote, pack_pci_info, keys=(number,))
    kind = "GPU" if remote in gpu_bus_ids else "SWITCH"
    kind_number = remote if isinstance(remote, Refusal) else constant(f"NVML_NVLINK_DEVICE_TYPE_{kind}")
    answers.reply("nvmlDeviceGetNvLinkRemoteDeviceType", kind_number, keys=(number,))
    for name, (counter, word) in _ERROR_COUNTERS.items():
        count = read_member(link, name)
        answers.reply("nvmlDeviceGetNvLinkErrorCounter", count, u64, keys=(number, counter))
        if number < _LINKS_WITH_FIELDS:
            answers.reply_field(f"DEV_NVLINK_{word}_ERROR_COUNT_L{number}", count, wide=True)
        if name in _SCOPED_FIELDS:
            answers.reply_field(_SCOPED_FIELDS[name], count, wide=True, scope=number)


def _total(links: Sequence[Mapping[str, Any]], name: str) -> Any:
    counts = [read_member(link, name) for link in links]
    known = [count for count in counts if not isinstance(count, Refusal)]
    return sum(known) if known else Refusal()


def encode_topology(gpus: Sequence[PlacedGpu], table: AnswerTable) -> None:
    """Answer what lies between each two GPUs: the nearest common PCI ancestor, and peer access."""
    levels = {
        (first.subject, second.subject): _common_ancestor(first, second)
        for first in gpus
        for second in gpus
        if first is not second
    }
    for (first_subject, second_subject), level in levels.items():
        table.answer("nvmlDeviceGetTopologyCommonAncestor", first_subject, u32(level), keys=(second_subject,))
    for first in gpus:
        _encode_nearest(first, gpus, levels, table)
        for second in gpus:
            table.answer("nvmlDeviceOnSameBoard", first.subject, u32(first is second), keys=(second.subject,))
            if first is not second:
                _encode_peer_access(first, second, table)


def _encode_nearest(
    first: PlacedGpu, gpus: Sequence[PlacedGpu], levels: dict[tuple[int, int], int], table: AnswerTable
) -> None:
    for name in ("INTERNAL", "SINGLE", "MULTIPLE", "HOSTBRIDGE", "NODE", "SYSTEM"):
        level = constant(f"NVML_TOPOLOGY_{name}")
        near = [gpu.subject for gpu in gpus if levels.get((first.subject, gpu.subject)) == level]
        value = u32(len(near)) + b"".join(u32(subject) for subject in near)
        table.answer("nvmlDeviceGetTopologyNearestGpus", first.subject, value, keys=(level,))


def _common_ancestor(first: PlacedGpu, second: PlacedGpu) -> int:
    """The NVML_TOPOLOGY_* level of two GPUs, by where sysfs has them, else by their NUMA nodes."""
    first_chain, second_chain = _pci_chain(first), _pci_chain(second)
    if first_chain and second_chain and first_chain[0] == second_chain[0]:
        shared = sum(1 for one, other in zip(first_chain, second_chain, strict=False) if one == other)
        if shared == 1:
            return constant("NVML_TOPOLOGY_HOSTBRIDGE")
        # Below a shared switch stand its downstream port and the GPU; more is more than one switch.
        one_switch = max(len(first_chain), len(second_chain)) - shared <= 2
        return constant("NVML_TOPOLOGY_SINGLE" if one_switch else "NVML_TOPOLOGY_MULTIPLE")
    same_node = first.gpu.readings.get("numa_node") == second.gpu.readings.get("numa_node")
    return constant("NVML_TOPOLOGY_NODE" if same_node else "NVML_TOPOLOGY_SYSTEM")


def _pci_chain(placed: PlacedGpu) -> list[str]:
    """The names of the folders from the PCI root to the GPU in the host tree's sysfs, or none."""
    bus_id = placed.gpu.readings.get("bus_id") or "-"
    for path in placed.host.files:
        if path.endswith(f"/{bus_id[4:]}/device") and "/pci" in path:
            folders = path.split("/")[:-1]
            root = next(
                (i for i, folder in enumerate(folders) if folder.startswith("pci") and ":" in folder), None
            )
            return folders[root:] if root is not None else []
    return []


def _encode_peer_access(first: PlacedGpu, second: PlacedGpu, table: AnswerTable) -> None:
    """Answer P2PStatus: NVLink, directly or by way of the same switches, is what gives peer access."""
    linked = _are_linked(first, second)
    ok, none = constant("NVML_P2P_STATUS_OK"), constant("NVML_P2P_STATUS_NOT_SUPPORTED")
    for index in (_P2P_READ, _P2P_WRITE, _P2P_NVLINK, _P2P_ATOMICS, _P2P_PCI):
        reachable = linked and index != _P2P_PCI
        keys = (second.subject, index)
        table.answer("nvmlDeviceGetP2PStatus", first.subject, u32(ok if reachable else none), keys=keys)


def _are_linked(first: PlacedGpu, second: PlacedGpu) -> bool:
    ends = [_active_ends(first), _active_ends(second)]
    direct = second.gpu.readings.get("bus_id") in ends[0] or first.gpu.readings.get("bus_id") in ends[1]
    return direct or bool(ends[0] & ends[1])


def _active_ends(placed: PlacedGpu) -> set[str]:
    links = placed.read("nvlinks")
    if isinstance(links, Refusal):
        return set()
    return {link["remote_bus_id"] for link in links if link.get("active") and link.get("remote_bus_id")}
