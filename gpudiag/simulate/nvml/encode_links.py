"""A GPU's links, its NUMA affinity, and the paths between two GPUs."""

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from gpudiag.reference.nvml import constant
from gpudiag.reference.vocabulary import PEER_PATHS, PEER_STATUSES
from gpudiag.simulate.nvml.answers import AnswerTable, GpuAnswers, PlacedGpu, Refusal, read_member, u32, u64
from gpudiag.simulate.nvml.encode_gpu import encode_bit_error_rate, numbered, pack_pci_info, word_number

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

_HIDDEN_SWITCH = "switch"


def encode_pcie(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer the highest generation and width of the GPU's PCIe link in its slot."""
    answers = GpuAnswers(table, placed.subject)
    answers.reply("nvmlDeviceGetMaxPcieLinkGeneration", _link_maximum(placed, "pcie_generation"))
    answers.reply("nvmlDeviceGetMaxPcieLinkWidth", _link_maximum(placed, "pcie_width"))
    answers.reply_field("DEV_PCIE_REPLAY_COUNTER", placed.read("pcie_replay_count"))


def _link_maximum(placed: PlacedGpu, name: str) -> Any:
    """The link's maximum with this GPU in this slot: the smaller of the two limits."""
    by_gpu, by_slot = placed.read(f"{name}_gpu_max"), placed.read(f"{name}_slot_max")
    if isinstance(by_gpu, Refusal):
        return by_gpu if isinstance(by_slot, Refusal) else by_slot
    if isinstance(by_slot, Refusal):
        return by_gpu
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
    failures, rate = read_member(link, "recovery_failures"), read_member(link, "bit_error_rate")
    answers.reply_field("DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", failures, wide=True, scope=number)
    encoded = rate if isinstance(rate, Refusal) else encode_bit_error_rate(rate)
    answers.reply_field("DEV_NVLINK_COUNT_EFFECTIVE_BER", encoded, wide=True, scope=number)
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


_P2P_READ, _P2P_WRITE, _P2P_NVLINK, _P2P_ATOMICS, _P2P_PCI = 0, 1, 2, 3, 4  # nvmlGpuP2PCapsIndex_t


def encode_affinity(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer which NUMA node and which processors are near the GPU, as bit masks."""
    answers = GpuAnswers(table, placed.subject)
    node = placed.read("numa_node")
    if not isinstance(node, Refusal) and node < 0:
        node = Refusal()  # as the kernel returns it on a machine without nodes
    answers.reply("nvmlDeviceGetMemoryAffinity", node, lambda number: _bit_set([number]))
    processors = placed.read_pci_attribute("local_cpulist")
    reading = Refusal() if processors is None else parse_cpulist(processors)
    answers.reply_each(("nvmlDeviceGetCpuAffinity", "nvmlDeviceGetCpuAffinityWithinScope"), reading, _bit_set)


def parse_cpulist(text: str) -> list[int]:
    """The numbers in a kernel list: `0-3,8` is 0, 1, 2, 3 and 8."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _bit_set(numbers: Sequence[int]) -> bytes:
    mask = sum(1 << number for number in set(numbers))
    return mask.to_bytes((max(numbers, default=0) // 64 + 1) * 8, "little")


def encode_topology(gpus: Sequence[PlacedGpu], table: AnswerTable) -> None:
    """Answer, for each pair of GPUs, the nearest common PCI ancestor and the peer access."""
    chains = {gpu.subject: _pci_chain(gpu) for gpu in gpus}
    levels = {
        (first.subject, second.subject): _common_ancestor(first, second, chains)
        for first in gpus
        for second in gpus
        if first is not second
    }
    for (first_subject, second_subject), level in levels.items():
        table.answer("nvmlDeviceGetTopologyCommonAncestor", first_subject, u32(level), keys=(second_subject,))
    bus_ids = {str(gpu.gpu.readings.get("bus_id")) for gpu in gpus}
    for first in gpus:
        _encode_nearest(first, gpus, levels, table)
        for second in gpus:
            table.answer("nvmlDeviceOnSameBoard", first.subject, u32(first is second), keys=(second.subject,))
            if first is not second:
                _encode_peer_access(first, second, bus_ids, table)


def _encode_nearest(
    first: PlacedGpu, gpus: Sequence[PlacedGpu], levels: dict[tuple[int, int], int], table: AnswerTable
) -> None:
    for name in ("INTERNAL", "SINGLE", "MULTIPLE", "HOSTBRIDGE", "NODE", "SYSTEM"):
        level = constant(f"NVML_TOPOLOGY_{name}")
        near = [gpu.subject for gpu in gpus if levels.get((first.subject, gpu.subject)) == level]
        value = u32(len(near)) + b"".join(u32(subject) for subject in near)
        table.answer("nvmlDeviceGetTopologyNearestGpus", first.subject, value, keys=(level,))


def _common_ancestor(first: PlacedGpu, second: PlacedGpu, chains: Mapping[int, list[str]]) -> int:
    """The NVML_TOPOLOGY_* level of two GPUs, from the reading `peers`, else from their paths in sysfs."""
    path = _peer_words(first, second).get("path")
    if path is not None:
        return word_number(PEER_PATHS, "peers", path)
    first_chain, second_chain = chains[first.subject], chains[second.subject]
    if first_chain and second_chain and first_chain[0] == second_chain[0]:
        return constant(f"NVML_TOPOLOGY_{_level_below_root(first_chain, second_chain)}")
    same_node = first.gpu.readings.get("numa_node") == second.gpu.readings.get("numa_node")
    return constant("NVML_TOPOLOGY_NODE" if same_node else "NVML_TOPOLOGY_SYSTEM")


def _level_below_root(first_chain: list[str], second_chain: list[str]) -> str:
    pairs = zip(first_chain, second_chain, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if shared == 1:
        return "HOSTBRIDGE"
    # Below a shared switch stand its downstream port and the GPU; more is more than one switch.
    return "SINGLE" if max(len(first_chain), len(second_chain)) - shared <= 2 else "MULTIPLE"


def _peer_words(first: PlacedGpu, second: PlacedGpu) -> Mapping[str, Any]:
    """The entry for the second GPU in the first one's reading `peers`; empty where there is none."""
    for peer in first.gpu.readings.get("peers") or ():
        if peer["bus_id"] == second.gpu.readings.get("bus_id"):
            found: Mapping[str, Any] = peer
            return found
    return {}


def _pci_chain(placed: PlacedGpu) -> list[str]:
    """The names of the folders from the PCI root to the GPU in the host tree's sysfs; empty if none."""
    bus_id = placed.gpu.readings.get("bus_id") or "-"
    for path in placed.host.files:
        if path.endswith(f"/{bus_id[4:]}/device") and "/pci" in path:
            folders = path.split("/")[:-1]
            root = next(
                (i for i, folder in enumerate(folders) if folder.startswith("pci") and ":" in folder), None
            )
            return folders[root:] if root is not None else []
    return []


def _encode_peer_access(
    first: PlacedGpu, second: PlacedGpu, bus_ids: Collection[str], table: AnswerTable
) -> None:
    """Answer P2PStatus from the reading; without one, NVLink, direct or through a switch, gives access."""
    words = _peer_words(first, second)
    linked = "ok" if _are_linked(first, second, bus_ids) else "not_supported"
    nvlink, read = words.get("nvlink") or linked, words.get("read") or linked
    statuses = {
        _P2P_READ: read,
        _P2P_WRITE: read,
        _P2P_NVLINK: nvlink,
        _P2P_ATOMICS: nvlink,
        _P2P_PCI: "not_supported" if nvlink == "ok" else read,
    }
    for index, status in statuses.items():
        number = word_number(numbered(PEER_STATUSES), "peers", status)
        table.answer("nvmlDeviceGetP2PStatus", first.subject, u32(number), keys=(second.subject, index))


def _are_linked(first: PlacedGpu, second: PlacedGpu, bus_ids: Collection[str]) -> bool:
    """Whether a link joins the two, or both have one to the same switch; one to the same GPU is none."""
    ends = [_active_ends(first), _active_ends(second)]
    direct = second.gpu.readings.get("bus_id") in ends[0] or first.gpu.readings.get("bus_id") in ends[1]
    return direct or bool((ends[0] & ends[1]) - set(bus_ids))


def _active_ends(placed: PlacedGpu) -> set[str]:
    """The far ends of the GPU's links that are up; one hidden switch for the links that name none."""
    links = placed.read("nvlinks")
    if isinstance(links, Refusal):
        return set()
    return {link.get("remote_bus_id") or _HIDDEN_SWITCH for link in links if link.get("active")}
