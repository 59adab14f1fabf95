"""How the GPUs of a machine are wired, with what was measured between them."""

from collections.abc import Iterable

from gpudiag.model.active import peer_metric
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.history import Baseline
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.service import MeasuredLink, Topology, TopologyDevice, TopologyLink


def build_topology(snapshot: Snapshot, baselines: Iterable[Baseline] = ()) -> Topology:
    """The GPUs, and the link from each to each."""
    measured = tuple(baselines)
    devices = snapshot.devices
    by_bus_id = {device.id.bus_id: device for device in devices}
    links = [link for device in devices for link in _links(device, by_bus_id, measured)]
    return Topology(snapshot.host, tuple(_place(device) for device in devices), tuple(links))


def _place(device: Device) -> TopologyDevice:
    active, total = _count_nvlinks(device)
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
        nvlinks_total=total,
    )


def _count_nvlinks(device: Device) -> tuple[Reading[int], Reading[int]]:
    links = device.nvlinks
    if isinstance(links, Missing):
        return links, links
    return sum(link.active is True for link in links), len(links)


def _links(
    device: Device, by_bus_id: dict[Reading[str], Device], measured: tuple[Baseline, ...]
) -> list[TopologyLink]:
    if isinstance(device.peers, Missing):
        return []
    links = []
    for peer in device.peers:
        other = by_bus_id.get(peer.bus_id)
        to_uuid: Reading[str] = NOT_ASKED if other is None else other.id.uuid
        links.append(
            TopologyLink(
                from_uuid=device.id.uuid,
                to_uuid=to_uuid,
                path=peer.path,
                read=peer.read,
                nvlink=peer.nvlink,
                nvlink_count=_direct_links(device, peer.bus_id),
                measured=_measured(device.id.uuid, to_uuid, measured),
            )
        )
    return links


def _direct_links(device: Device, bus_id: str) -> Reading[int]:
    """NVLinks that lead straight to the other GPU; behind a switch none of them says where it leads."""
    links = device.nvlinks
    if isinstance(links, Missing):
        return links
    known = [link for link in links if not isinstance(link.remote_bus_id, Missing)]
    if links and not known:
        return Missing(MissingReason.NOT_SUPPORTED, "the links do not say where they lead")
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
