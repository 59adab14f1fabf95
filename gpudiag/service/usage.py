"""Who uses which GPU, and how the GPUs of a machine are wired."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from gpudiag.model.active import peer_metric
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.history import Baseline
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading, value_or
from gpudiag.model.service import (
    MeasuredLink,
    Processes,
    ProcessUse,
    Topology,
    TopologyDevice,
    TopologyLink,
    UserUse,
)
from gpudiag.units import GIB

IDLE_SECONDS = 15 * 60.0
IDLE_HOLDER_BYTES = GIB  # a bare CUDA context takes some hundred MiB, and does not reserve the GPU


class IdleClock:
    """Since when each GPU has been idle without a break, by UUID."""

    def __init__(self) -> None:
        """Start without any GPU."""
        self.idle_since: dict[str, datetime] = {}

    def note(self, device: Device, at: datetime) -> None:
        """Record one reading; a GPU that does not answer is not known to be idle."""
        uuid, busy = device.id.uuid, device.utilization_percent
        if isinstance(uuid, Missing):
            return
        if isinstance(busy, Missing) or busy > 0:
            self.idle_since.pop(uuid, None)
        else:
            self.idle_since.setdefault(uuid, at)


def list_processes(snapshot: Snapshot, idle_since: Mapping[str, datetime]) -> Processes:
    """Every process on every GPU, most memory first, and each user's total."""
    uses = [use for device in snapshot.devices for use in _uses(device, idle_since, snapshot.taken_at)]
    uses.sort(key=lambda use: -value_or(use.process.memory_used_bytes, 0))
    return Processes(snapshot.taken_at, tuple(uses), tuple(_users(uses)))


def _uses(device: Device, idle_since: Mapping[str, datetime], now: datetime) -> list[ProcessUse]:
    processes = device.processes
    if isinstance(processes, Missing):
        return []
    uuid = device.id.uuid
    since = None if isinstance(uuid, Missing) else idle_since.get(uuid)
    long_idle = since is not None and (now - since).total_seconds() >= IDLE_SECONDS
    return [
        ProcessUse(
            uuid,
            device.id.nvml_index,
            process,
            since,
            long_idle and value_or(process.memory_used_bytes, 0) > IDLE_HOLDER_BYTES,
        )
        for process in processes
    ]


def _users(uses: list[ProcessUse]) -> list[UserUse]:
    by_user: dict[str, list[ProcessUse]] = defaultdict(list)
    for use in uses:
        user = use.process.user
        by_user["-" if isinstance(user, Missing) else user].append(use)
    users = [
        UserUse(
            user,
            sum(value_or(use.process.memory_used_bytes, 0) for use in theirs),
            len({str(use.uuid) for use in theirs}),
            len({use.process.pid for use in theirs}),
        )
        for user, theirs in by_user.items()
    ]
    return sorted(users, key=lambda user: -user.memory_used_bytes)


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
