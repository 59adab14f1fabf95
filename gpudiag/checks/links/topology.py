"""The topology of a machine as one document, of a snapshot and earlier measurements; nothing is judged."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from gpudiag.checks.links.infiniband import reaches_gpu_memory
from gpudiag.checks.links.nccl_paths import (
    Ways,
    add_relays,
    choose_transport,
    find_ways,
    network_is_faster,
    nics_of_gpu,
    read_levels,
    takes_nic,
    type_of_path,
)
from gpudiag.checks.per_device import answering
from gpudiag.model.active import peer_metric
from gpudiag.model.device import Device, PeerAccess, Snapshot
from gpudiag.model.history import Baseline
from gpudiag.model.host_state import HostState, InfinibandPort, PciPlace
from gpudiag.model.number_ranges import order_of_name
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading, value_or
from gpudiag.model.topology import (
    MeasuredLink,
    NcclLevels,
    NicPath,
    Topology,
    TopologyDevice,
    TopologyLink,
    TopologyNic,
    TopologyNode,
    TopologySwitch,
)
from gpudiag.reference.speeds import pcie_bytes_per_second
from gpudiag.reference.vocabulary import PATH_LABELS

_NO_PATH = Missing(MissingReason.SOURCE_ABSENT, "its place on the PCI bus is not shown")


def build_topology(snapshot: Snapshot, baselines: Iterable[Baseline] = ()) -> Topology:
    """The GPUs, NVSwitches, network cards and NUMA nodes, and what lies between them; without a verdict."""
    machine, devices = snapshot.machine, snapshot.devices
    nics = list_nics(snapshot)
    levels = read_levels(machine, len(devices), gpu_direct_ready=reaches_gpu_memory(machine))
    paths = [[path_to_nic(snapshot, device, nic) for nic in nics] for device in devices]
    links = _Pairs(snapshot, levels, nics, paths)
    far = _calls_one_node_far(snapshot)
    return Topology(
        snapshot.host,
        tuple(_device(snapshot, device, links.nics_of(at)) for at, device in enumerate(devices)),
        tuple(links.build(tuple(baselines))),
        simulated=snapshot.simulated,
        nics=nics,
        nic_paths=tuple(
            NicPath(
                device.id.uuid,
                nic.name,
                path,
                label_of_path(path, far=far),
                *links.way(at, place),
                _slower(_pcie_rate(device), _card_rate(nic)),
            )
            for at, device in enumerate(devices)
            for place, (nic, path) in enumerate(zip(nics, paths[at], strict=True))
        ),
        switches=tuple(
            TopologySwitch(place.bus_id, place.numa_node, place.root, place.bridges)
            for place in places(snapshot).values()
            if place.kind == "nvswitch"
        ),
        numa_nodes=_numa_nodes(snapshot, nics),
        nccl=levels,
    )


# --- places on the PCI bus


def places(snapshot: Snapshot) -> dict[str, PciPlace]:
    """The places of GPUs, NVSwitches and network cards, by bus id; none where they were not read."""
    found = _of_state(snapshot, "pci_places")
    return {} if isinstance(found, Missing) else {place.bus_id: place for place in found}


def _of_state(snapshot: Snapshot, name: str) -> Reading[tuple[PciPlace, ...]]:
    state = snapshot.machine.state
    found: Reading[tuple[PciPlace, ...]] = getattr(state, name) if isinstance(state, HostState) else state
    return found


def place_of(snapshot: Snapshot, device: Device) -> PciPlace | None:
    """A GPU's place on the PCI bus; None where it is not shown."""
    bus_id = device.id.bus_id
    return None if isinstance(bus_id, Missing) else places(snapshot).get(bus_id)


def pci_path(snapshot: Snapshot, first: PciPlace, second: PciPlace) -> str:
    """The nearest common ancestor of two functions, in the words of `PeerAccess.path`, by the kernel's tree.

    Below one switch stand its downstream port and the function: what is farther from what both share is below
    more than one (`nvidia-smi topo -m` of machines whose `lspci -t` was published with it).
    """
    if first.root == second.root:
        both = zip(first.bridges, second.bridges, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
        if not shared:
            return "host_bridge"
        below = max(len(first.bridges), len(second.bridges)) - shared
        return "pcie_switch" if below <= 1 else "pcie_switches"
    nodes = first.numa_node, second.numa_node
    if isinstance(nodes[0], Missing) or isinstance(nodes[1], Missing):
        return "numa_node" if _has_one_node(snapshot) else "system"
    return "numa_node" if nodes[0] == nodes[1] else "system"


def _has_one_node(snapshot: Snapshot) -> bool:
    nodes = _nodes(snapshot)
    return not isinstance(nodes, Missing) and len(nodes) == 1


def _nodes(snapshot: Snapshot) -> Reading[tuple[object, ...]]:
    state = snapshot.machine.state
    if isinstance(state, Missing) or isinstance(state.processor_layout, Missing):
        return state if isinstance(state, Missing) else NOT_ASKED
    return state.processor_layout.numa_nodes


def label_of_path(path: Reading[str], *, far: bool = False) -> Reading[str]:
    """The letters of a PCIe path in `nvidia-smi topo -m`; `far`: host bridges of one node are SYS."""
    if isinstance(path, Missing):
        return path
    return PATH_LABELS.get("system" if far and path == "numa_node" else path, path)


def _calls_one_node_far(snapshot: Snapshot) -> bool:
    """Whether the driver reports `system` between two GPUs, and so cards, of one NUMA node."""
    nodes = {device.id.bus_id: device.numa_node for device in snapshot.devices}
    return any(
        peer.path == "system" and nodes.get(peer.bus_id) == device.numa_node
        for device in snapshot.devices
        if not isinstance(device.numa_node, Missing)
        for peer in value_or(device.peers, ())
    )


# --- network cards


def list_nics(snapshot: Snapshot) -> tuple[TopologyNic, ...]:
    """The network cards: RDMA devices by name, as nvidia-smi numbers them; then other interfaces."""
    found = places(snapshot).values()
    devices = sorted(
        ((name, place) for place in found for name in place.rdma_devices),
        key=lambda one: order_of_name(one[0]),
    )
    rdma = [_rdma_card(snapshot, number, name, place) for number, (name, place) in enumerate(devices)]
    others = [
        _card(snapshot, name, place, Missing(MissingReason.NOT_SUPPORTED, "it has no RDMA"), None)
        for place in found
        if not place.rdma_devices
        for name in place.interfaces
    ]
    return (*rdma, *others)


def _rdma_card(snapshot: Snapshot, number: int, name: str, place: PciPlace) -> TopologyNic:
    state = snapshot.machine.state
    ports = () if isinstance(state, Missing) else value_or(state.infiniband_ports, ())
    own = [port for port in ports if port.device == name]
    up = next((port for port in own if port.state == "ACTIVE"), own[0] if own else None)
    return _card(snapshot, name, place, number, up)


def _card(
    snapshot: Snapshot, name: str, place: PciPlace, number: Reading[int], port: InfinibandPort | None
) -> TopologyNic:
    interface = next(
        (one for one in value_or(snapshot.machine.interfaces, ()) if one.name in place.interfaces), None
    )
    link_layer: Reading[str] = "Ethernet"
    active: Reading[bool] = NOT_ASKED if interface is None else interface.up
    rate: Reading[float] = NOT_ASKED
    if interface is not None:
        speed = interface.speed_mbit_per_second
        rate = speed if isinstance(speed, Missing) else speed / 1000
    if port is not None:
        link_layer, rate = port.link_layer, port.rate_gbit_per_second
        active = port.state if isinstance(port.state, Missing) else port.state == "ACTIVE"
    return TopologyNic(
        name=name,
        bus_id=place.bus_id,
        number=number,
        interfaces=place.interfaces,
        numa_node=place.numa_node,
        processors=place.processors,
        root=place.root,
        bridges=place.bridges,
        link_layer=link_layer,
        active=active,
        rate_gbit_per_second=rate,
        pcie_generation=place.link_generation,
        pcie_width=place.link_width,
        virtual_function=place.virtual_function,
    )


def path_to_nic(snapshot: Snapshot, device: Device, nic: TopologyNic) -> Reading[str]:
    """The path from a GPU to a network card, in the words of `PeerAccess.path`."""
    own, card = place_of(snapshot, device), places(snapshot).get(nic.bus_id)
    return _NO_PATH if own is None or card is None else pci_path(snapshot, own, card)


# --- GPUs


def _device(snapshot: Snapshot, device: Device, nics: tuple[str, ...]) -> TopologyDevice:
    links, place = device.nvlinks, place_of(snapshot, device)
    active: Reading[int] = links if isinstance(links, Missing) else len(_up(device))
    return TopologyDevice(
        uuid=device.id.uuid,
        bus_id=device.id.bus_id,
        nvml_index=device.id.nvml_index,
        name=device.name,
        numa_node=device.numa_node,
        pcie_generation=device.pcie_generation,
        pcie_width=device.pcie_width,
        pcie_generation_slot_max=device.pcie_generation_slot_max,
        pcie_width_slot_max=device.pcie_width_slot_max,
        nvlinks_active=active,
        nvlinks_total=links if isinstance(links, Missing) else len(links),
        processors=_NO_PATH if place is None else place.processors,
        root=_NO_PATH if place is None else place.root,
        bridges=_NO_PATH if place is None else place.bridges,
        nvlink_bytes_per_second=device.nvlink_bytes_per_second,
        nics=nics,
    )


def _up(device: Device) -> list[Reading[str]]:
    """The far ends of the NVLinks that are up."""
    links = () if isinstance(device.nvlinks, Missing) else device.nvlinks
    return [link.remote_bus_id for link in links if link.active is True]


class _Pairs:
    """What lies between each two GPUs, and between each GPU and each network card that NCCL takes."""

    def __init__(
        self,
        snapshot: Snapshot,
        levels: NcclLevels,
        nics: Sequence[TopologyNic],
        paths: Sequence[Sequence[Reading[str]]],
    ) -> None:
        self._snapshot, self._levels, self._nics = snapshot, levels, nics
        devices = snapshot.devices
        # Without one it takes network interfaces, over sockets: which card that is, its own settings decide.
        self._taken = [at for at, nic in enumerate(nics) if takes_nic(snapshot.machine, nic)]
        taken = [nics[at] for at in self._taken]
        wanted = [[own[at] for at in self._taken] for own in paths]
        own_ways = find_ways(snapshot.machine, devices, taken, wanted, levels) if taken else []
        linked = [[self._nvlinks(one, other) > 0 for other in devices] for one in devices]
        self._ways: Ways = add_relays(own_ways, linked)
        self._linked = linked

    def nics_of(self, gpu: int) -> tuple[str, ...]:
        """The names of the cards that NCCL takes for a GPU, by its place in the snapshot."""
        return tuple(self._nics[self._taken[at]].name for at in nics_of_gpu(self._ways, gpu))

    def way(self, gpu: int, nic: int) -> tuple[Reading[str], Reading[bool]]:
        """NCCL's type of the path to a card, and whether it uses GPUDirect RDMA there."""
        if nic not in self._taken:
            words = Missing(MissingReason.NOT_SUPPORTED, "NCCL does not take this card for RDMA")
            return words, words
        found = self._ways[gpu][self._taken.index(nic)]
        return found.path, found.gpu_direct

    def build(self, baselines: tuple[Baseline, ...]) -> Iterable[TopologyLink]:
        """A link from each GPU to each other one that its driver reports."""
        devices = self._snapshot.devices
        by_bus_id = {device.id.bus_id: place for place, device in enumerate(devices)}
        for at, device in enumerate(devices):
            for peer in value_or(device.peers, ()):
                yield self._link(at, device, peer, by_bus_id.get(peer.bus_id), baselines)

    def _link(
        self, at: int, device: Device, peer: PeerAccess, to: int | None, baselines: tuple[Baseline, ...]
    ) -> TopologyLink:
        other = None if to is None else self._snapshot.devices[to]
        to_uuid: Reading[str] = NOT_ASKED if other is None else other.id.uuid
        count = 0 if other is None else self._nvlinks(device, other)
        path, transport = self._nccl(at, to, peer, count)
        speed = device.nvlink_bytes_per_second
        nvlinks = speed if isinstance(speed, Missing) else count * speed
        return TopologyLink(
            from_uuid=device.id.uuid,
            to_uuid=to_uuid,
            path=peer.path,
            read=peer.read,
            nvlink=peer.nvlink,
            nvlink_count=_direct_links(device, peer.bus_id),
            measured=_measured(device.id.uuid, to_uuid, baselines),
            label=f"NV{count}" if count else label_of_path(peer.path),
            bytes_per_second=nvlinks
            if count
            else _slower(_pcie_rate(device), None if other is None else _pcie_rate(other)),
            nccl_path=path,
            nccl_transport=transport,
        )

    def _nccl(
        self, at: int, to: int | None, peer: PeerAccess, count: int
    ) -> tuple[Reading[str], Reading[str]]:
        if to is None:
            return NOT_ASKED, NOT_ASKED
        kind = "NVL" if count else "NVB" if self._has_bridge(at, to) else type_of_path(peer.path)
        faster = (
            bool(self._taken)
            and not isinstance(kind, Missing)
            and network_is_faster(self._snapshot.machine, self._ways, at, to, self._snapshot.devices, kind)
        )
        transport, path = choose_transport(kind, peer.read, self._levels, network_is_faster=faster)
        return path, transport

    def _has_bridge(self, at: int, to: int) -> bool:
        """Whether one GPU has NVLinks to both, in a mesh without switches."""
        return any(
            self._linked[at][other] and self._linked[other][to]
            for other in range(len(self._linked))
            if other not in (at, to)
        )

    def _nvlinks(self, device: Device, other: Device) -> int:
        """How many NVLinks join two GPUs: straight ones, else by a switch all of the one with fewer."""
        if device is other:
            return 0
        ends = _up(device)
        straight = sum(end == other.id.bus_id for end in ends)
        access = next((peer for peer in value_or(device.peers, ()) if peer.bus_id == other.id.bus_id), None)
        if straight or access is None or access.nvlink != "ok":
            return straight
        return min(len(ends), len(_up(other)))


def _pcie_rate(device: Device) -> Reading[float]:
    """What a GPU's PCIe link carries one way at its best, as the GPU and a visible slot allow."""
    generation, width = device.pcie_generation_gpu_max, device.pcie_width_gpu_max
    if isinstance(generation, Missing) or isinstance(width, Missing):
        return generation if isinstance(generation, Missing) else NOT_ASKED
    return _rate(
        min(generation, value_or(device.pcie_generation_slot_max, generation)),
        min(width, value_or(device.pcie_width_slot_max, width)),
    )


def _card_rate(nic: TopologyNic) -> Reading[float]:
    """What a card's PCIe link carries now in one direction."""
    if isinstance(nic.pcie_generation, Missing) or isinstance(nic.pcie_width, Missing):
        return NOT_ASKED
    return _rate(nic.pcie_generation, nic.pcie_width)


def _rate(generation: int, width: int) -> Reading[float]:
    try:
        return pcie_bytes_per_second(generation, width)
    except KeyError:
        return Missing(MissingReason.ERROR, f"PCIe generation {generation} is new to gpudiag")


def _slower(first: Reading[float], second: Reading[float] | None) -> Reading[float]:
    if second is None or isinstance(first, Missing):
        return first if isinstance(first, Missing) else NOT_ASKED
    return second if isinstance(second, Missing) else min(first, second)


def _direct_links(device: Device, bus_id: str) -> Reading[int]:
    """The number of NVLinks directly to the other GPU; behind a switch no link shows its far end."""
    links = device.nvlinks
    if isinstance(links, Missing):
        return links
    known = [link for link in links if not isinstance(link.remote_bus_id, Missing)]
    if links and not known:
        return Missing(MissingReason.NOT_SUPPORTED, "the links do not report their other end")
    return sum(link.remote_bus_id == bus_id for link in known)


def _measured(
    from_uuid: Reading[str], to_uuid: Reading[str], baselines: tuple[Baseline, ...]
) -> MeasuredLink | None:
    if isinstance(from_uuid, Missing) or isinstance(to_uuid, Missing):
        return None
    wanted = peer_metric(to_uuid)
    for baseline in baselines:
        if baseline.metric == wanted and baseline.device_uuid == from_uuid:
            return MeasuredLink(baseline.metric, baseline.latest, baseline.unit, baseline.latest_at)
    return None


def _numa_nodes(snapshot: Snapshot, nics: Sequence[TopologyNic]) -> Reading[tuple[TopologyNode, ...]]:
    state = snapshot.machine.state
    if isinstance(state, Missing):
        return state
    layout = state.processor_layout
    nodes = layout if isinstance(layout, Missing) else layout.numa_nodes
    if isinstance(nodes, Missing):
        return nodes
    return tuple(
        TopologyNode(
            one.node,
            one.processors,
            tuple(str(device.id.bus_id) for device in answering(snapshot) if device.numa_node == one.node),
            tuple(dict.fromkeys(nic.bus_id for nic in nics if nic.numa_node == one.node)),
        )
        for one in nodes
    )
