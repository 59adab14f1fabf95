"""What lies near a GPU and between two of them: processors, common PCI ancestors, peer access."""

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from gpudiag.reference.nvml import constant
from gpudiag.reference.vocabulary import PEER_PATHS, PEER_STATUSES
from gpudiag.simulate.answers import AnswerTable, Refusal, u32
from gpudiag.simulate.encode_identity import numbered, word_number
from gpudiag.simulate.gpu_answers import GpuAnswers, PlacedGpu

_HIDDEN_SWITCH = "switch"
_P2P_READ, _P2P_WRITE, _P2P_NVLINK, _P2P_ATOMICS, _P2P_PCI = 0, 1, 2, 3, 4  # nvmlGpuP2PCapsIndex_t


def encode_affinity(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer which NUMA node and which processors are near the GPU, as sets of bits."""
    answers = GpuAnswers(table, placed.subject)
    node = placed.read("numa_node")
    if not isinstance(node, Refusal) and node < 0:
        node = Refusal()  # the kernel's word for a machine without nodes
    answers.reply("nvmlDeviceGetMemoryAffinity", node, lambda number: _bit_set([number]))
    processors = placed.read_pci_attribute("local_cpulist")
    reading = Refusal() if processors is None else parse_cpulist(processors)
    answers.reply_each(("nvmlDeviceGetCpuAffinity", "nvmlDeviceGetCpuAffinityWithinScope"), reading, _bit_set)


def parse_cpulist(text: str) -> list[int]:
    """The numbers in a list of the kernel's: `0-3,8` is 0, 1, 2, 3 and 8."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _bit_set(numbers: Sequence[int]) -> bytes:
    mask = sum(1 << number for number in set(numbers))
    return mask.to_bytes((max(numbers, default=0) // 64 + 1) * 8, "little")


def encode_topology(gpus: Sequence[PlacedGpu], table: AnswerTable) -> None:
    """Answer what lies between each two GPUs: the nearest common PCI ancestor, and peer access."""
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
    """The NVML_TOPOLOGY_* level of two GPUs: as their reading says, else by where sysfs has them."""
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
    """What the first GPU's reading `peers` says of the second; empty where it says nothing."""
    for peer in first.gpu.readings.get("peers") or ():
        if peer["bus_id"] == second.gpu.readings.get("bus_id"):
            found: Mapping[str, Any] = peer
            return found
    return {}


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


def _encode_peer_access(
    first: PlacedGpu, second: PlacedGpu, bus_ids: Collection[str], table: AnswerTable
) -> None:
    """Answer P2PStatus: as the reading says; else NVLink, direct or through a switch, gives access."""
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
    """Whether a link goes from one to the other, or from both to one switch; a GPU between them is none."""
    ends = [_active_ends(first), _active_ends(second)]
    direct = second.gpu.readings.get("bus_id") in ends[0] or first.gpu.readings.get("bus_id") in ends[1]
    return direct or bool((ends[0] & ends[1]) - set(bus_ids))


def _active_ends(placed: PlacedGpu) -> set[str]:
    """The far ends of its links that are up; of those that do not say, one switch that this machine hides."""
    links = placed.read("nvlinks")
    if isinstance(links, Refusal):
        return set()
    return {link.get("remote_bus_id") or _HIDDEN_SWITCH for link in links if link.get("active")}
