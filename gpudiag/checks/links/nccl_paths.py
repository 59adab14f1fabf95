"""What NCCL would choose between GPUs and network cards: paths, P2P, GPUDirect RDMA, each GPU's cards.

Source: NCCL 2.30.7. src/include/graph.h has the types; src/graph/paths.cc the rules (ncclTopoSetPaths,
ncclTopoCheckP2p, ncclTopoCheckGdr, ncclTopoCheckNet, ncclTopoComputePaths); src/graph/topo.cc the bandwidths
(ncclTopoAddPci, ncclTopoGetInterCpuBw) and which card a GPU takes (ncclTopoGetLocalNetType). NCCL merges the
chips of one Broadcom switch: its log may have PIX where a path is PXB here, and both are treated alike.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from gpudiag.model.device import Device
from gpudiag.model.host import Machine
from gpudiag.model.reading import Missing, MissingReason, Reading, value_or
from gpudiag.model.topology import NcclLevels, TopologyNic

VERSION = "2.30.7"
# From the nearest on: the order decides what is within a level.
TYPES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
# The words of `PeerAccess.path` as NCCL's types: a NUMA node is one CPU to it.
_TYPE_OF_PATH = {
    "board": "PIX",
    "pcie_switch": "PIX",
    "pcie_switches": "PXB",
    "host_bridge": "PHB",
    "numa_node": "PHB",
    "system": "SYS",
}
_P2P_LEVEL, _GDR_LEVEL = "PXB", "P2C"  # NCCL's own, without a setting
_FEW_GPUS = 2  # up to this many on an AMD processor, P2P goes over the processor
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")  # 0 to 5, as before NCCL 2.5
_GB_PER_LANE = {1: 0.1875, 2: 0.375, 3: 0.75, 4: 1.5, 5: 3.0, 6: 6.0}  # GB/s, by PCIe generation
_BITS = 8
# GB/s between two sockets: AMD, Arm, and Intel by the generation, the second digit of a Xeon's number (8480:
# the fourth).
_AMD, _ARM, _OLDEST_XEON = 16.0, 6.0, 6.0
_XEON = re.compile(r"Xeon\S* (?:Platinum|Gold|Silver|Bronze) \d(\d)")
_XEONS = {"1": 10.0, "2": 10.0, "3": 10.0, "4": 22.0, "5": 40.0, "6": 40.0}
_C2C = ("GH200", "GB200", "GB300")  # GPUs whose way to the processor is NVLink-C2C


def type_of_path(path: Reading[str]) -> Reading[str]:
    """NCCL's type of a path over PCIe, given in the words of `PeerAccess`."""
    if isinstance(path, Missing):
        return path
    known = _TYPE_OF_PATH.get(path)
    return known or Missing(MissingReason.ERROR, f"the driver reports {path}, which gpudiag does not know")


def is_within(path_type: str, level: str) -> bool:
    """Whether a path is no farther than a level."""
    return TYPES.index(path_type) <= TYPES.index(level)


def read_levels(machine: Machine, gpus: int, *, gpu_direct_ready: Reading[bool]) -> NcclLevels:
    """How far P2P and GPUDirect RDMA go here with so many GPUs, by NCCL's rules and settings."""
    amd = machine.processor_architecture == "x86_64" and "AMD" in value_or(machine.processor, "")
    own = "SYS" if amd and gpus <= _FEW_GPUS else _P2P_LEVEL
    disabled = _setting(machine, "NCCL_P2P_DISABLE")
    p2p, source = _level(machine, "NCCL_P2P_LEVEL", own)
    if disabled == "1":
        p2p, source = "LOC", "NCCL_P2P_DISABLE=1"
    gdr_own = "PXB" if _setting(machine, "NCCL_NET_GDR_C2C") == "0" else _GDR_LEVEL
    gdr, gdr_source = _level(machine, "NCCL_NET_GDR_LEVEL", gdr_own)
    return NcclLevels(p2p, source, gdr, gdr_source, gpu_direct_ready, VERSION)


def _level(machine: Machine, name: str, own: str) -> tuple[str, str | None]:
    text = _setting(machine, name)
    if text in TYPES[: TYPES.index("SYS") + 1]:
        return str(text), f"{name}={text}"
    if text and text.isdecimal():
        return _OLD_LEVELS[min(int(text), len(_OLD_LEVELS) - 1)], f"{name}={text}"
    return own, None


def _setting(machine: Machine, name: str) -> str | None:
    """The value of an NCCL variable here: the environment's, else that of NCCL's files."""
    state = machine.state
    if isinstance(state, Missing) or isinstance(state.settings, Missing):
        return None
    if name in state.settings.environment:
        return state.settings.environment[name]
    files = value_or(state.settings.nccl_files, {})
    return next((settings[name] for settings in files.values() if name in settings), None)


def choose_transport(
    path: Reading[str], read: Reading[str], levels: NcclLevels, *, network_is_faster: bool
) -> tuple[Reading[str], Reading[str]]:
    """NCCL's transport between two GPUs (P2P, SHM or NET), and the path's type in its log.

    `read` is NVML's word on peer access. Without P2P the data goes through the host's memory, so the path is
    PHB at least; or over the network cards, where those are beside both GPUs and faster.
    """
    if isinstance(path, Missing):
        return path, path
    if isinstance(read, Missing) and is_within(path, levels.p2p):
        return read, path
    if read == "ok" and is_within(path, levels.p2p):
        return "P2P", path
    through_host = path if not is_within(path, "PHB") else "PHB"
    return ("NET" if network_is_faster else "SHM"), through_host


# --- network cards


@dataclass(frozen=True, slots=True)
class WayToNic:
    """One GPU's way to one network card: NCCL's type, GB/s, and whether GPUDirect RDMA is used."""

    path: str
    gb_per_second: float
    gpu_direct: bool


Ways = list[list[WayToNic]]  # by GPU, then by network card


def find_ways(
    machine: Machine,
    devices: Sequence[Device],
    nics: Sequence[TopologyNic],
    paths: Sequence[Sequence[Reading[str]]],
    levels: NcclLevels,
) -> Ways:
    """Each GPU's way to each network card, without relays; `paths`: words of `PeerAccess.path`."""
    return [
        [_way(machine, device, nic, path, levels) for nic, path in zip(nics, own, strict=True)]
        for device, own in zip(devices, paths, strict=True)
    ]


def _way(
    machine: Machine, device: Device, nic: TopologyNic, path: Reading[str], levels: NcclLevels
) -> WayToNic:
    path_type = value_or(type_of_path(path), "DIS")
    over_c2c = any(word in value_or(device.name, "") for word in _C2C)
    if over_c2c and path_type == "PHB":
        path_type = "P2C"
    carries = min(
        inf if over_c2c else _gpu_gb_per_second(device),
        _lanes(nic.pcie_generation, nic.pcie_width),
        value_or(nic.rate_gbit_per_second, inf) / _BITS,
        _gb_between_processors(machine) if path_type == "SYS" else inf,
    )
    direct = levels.gpu_direct_ready is True and is_within(path_type, levels.gpu_direct)
    return WayToNic(path_type, carries, direct)


def add_relays(ways: Ways, is_linked: Sequence[Sequence[bool]]) -> Ways:
    """The ways with PXN: over NVLink to the GPU beside a card, where the own way is by a processor."""
    relayed = [list(own) for own in ways]
    for nic in range(len(ways[0]) if ways else 0):
        beside = _gpu_of_nic(ways, nic)
        if beside is None:
            continue
        near = ways[beside][nic]
        for gpu, own in enumerate(ways):
            reaches = (
                near.gpu_direct and is_within(near.path, "P2C") and gpu != beside and is_linked[beside][gpu]
            )
            if reaches and (
                near.gb_per_second > own[nic].gb_per_second or not is_within(own[nic].path, "PXN")
            ):
                relayed[gpu][nic] = replace(near, path="PXN")
    return relayed


def _gpu_of_nic(ways: Ways, nic: int) -> int | None:
    """The GPU beside a card that takes it; None where none does."""
    local = _best([own[nic] for own in ways])
    for channel in range(len(ways[0])):
        for gpu in local:
            if _nic_of_channel(ways, gpu, channel) == nic:
                return gpu
    return None


def nics_of_gpu(ways: Ways, gpu: int) -> list[int]:
    """The network cards that NCCL takes for a GPU, in the order of its channels."""
    if not ways or not ways[gpu]:
        return []
    return list(dict.fromkeys(_nic_of_channel(ways, gpu, channel) for channel in range(len(ways[gpu]))))


def _nic_of_channel(ways: Ways, gpu: int, channel: int) -> int:
    local = _best(ways[gpu])
    sharing = _best([own[local[0]] for own in ways])
    each = -(-len(local) // len(sharing))
    place = gpu % len(sharing)
    bits = len(local).bit_length() - 1
    if (
        bits and len(local) == 1 << bits
    ):  # a power of two: its bits the other way round, so that neighbours are far apart
        place = int(f"{place % len(local):0{bits}b}"[::-1], 2)
    return local[(place + channel % each) % len(local)]


def _best(ways: Sequence[WayToNic]) -> list[int]:
    """The places of those that carry most; of these, the nearest."""
    most = max(way.gb_per_second for way in ways)
    nearest = min(TYPES.index(way.path) for way in ways if way.gb_per_second == most)
    return [
        place
        for place, way in enumerate(ways)
        if way.gb_per_second == most and TYPES.index(way.path) == nearest
    ]


def network_is_faster(
    machine: Machine, ways: Ways, first: int, second: int, devices: Sequence[Device], path: str
) -> bool:
    """Whether cards beside both GPUs carry more than the path between the GPUs through the processors."""
    between = min(
        _gpu_gb_per_second(devices[first]),
        _gpu_gb_per_second(devices[second]),
        _gb_between_processors(machine) if path == "SYS" else inf,
    )
    if _setting(machine, "NCCL_NET_DISABLE_INTRA") == "1":
        return False
    return all(
        max((way.gb_per_second for way in ways[gpu] if is_within(way.path, "PXB")), default=0.0) > between
        for gpu in (first, second)
    )


def takes_nic(machine: Machine, nic: TopologyNic) -> bool:
    """Whether NCCL takes the card: an RDMA device with a port that is up, unless a setting leaves it out."""
    if (
        isinstance(nic.number, Missing)
        or nic.active is not True
        or _setting(machine, "NCCL_IB_DISABLE") == "1"
    ):
        return False
    wanted = _setting(machine, "NCCL_IB_HCA")
    if not wanted:
        return True
    names = [part.partition(":")[0] for part in wanted.lstrip("^=").split(",") if part]
    exactly = "=" in wanted[:2]
    is_named = any(nic.name == name if exactly else nic.name.startswith(name) for name in names)
    return is_named is not wanted.startswith("^")


def _gpu_gb_per_second(device: Device) -> float:
    """What a GPU's PCIe link carries at its best, in GB/s; infinity where that is not known."""
    parts = (
        (device.pcie_generation_gpu_max, device.pcie_width_gpu_max),
        (device.pcie_generation_slot_max, device.pcie_width_slot_max),
    )
    return min(_lanes(generation, width) for generation, width in parts)


def _lanes(generation: Reading[int], width: Reading[int]) -> float:
    if isinstance(generation, Missing) or isinstance(width, Missing):
        return inf
    return _GB_PER_LANE.get(generation, inf) * width


def _gb_between_processors(machine: Machine) -> float:
    """What NCCL takes the link between two sockets for, in GB/s."""
    name = value_or(machine.processor, "")
    if machine.processor_architecture == "aarch64":
        return _ARM
    if "AMD" in name:
        return _AMD
    found = _XEON.search(name)
    return _XEONS.get(found[1], _OLDEST_XEON) if found else _OLDEST_XEON
