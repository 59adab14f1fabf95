"""Which lines of the kernel log belong together, and which of them is the cause.

One fault makes many lines: the GPU's own Xid, clean-up on every channel, page faults on its peers. Lines
of one burst are judged together, so that each fault is named once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpudiag.model.device import Device, Snapshot
from gpudiag.model.finding import Outcome
from gpudiag.model.kernel_log import BURST_SILENCE, KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing
from gpudiag.reference.xid import Xid, XidKind, nvlink5_bucket, xids

_GPU_KINDS = (KernelEventKind.XID, KernelEventKind.GPU_OFF_BUS)
_OFF_BUS_XID = 79


@dataclass(frozen=True, slots=True)
class GpuBurst:
    """The lines about one GPU in one burst, oldest first, and the one that caused the others.

    `device` is None for a GPU that the snapshot does not list.
    """

    device: Device | None
    events: tuple[KernelEvent, ...]
    root: KernelEvent

    @property
    def xid(self) -> Xid | None:
        """The root's entry in the catalogue; None for a code that is not in it."""
        return entry_of(self.root)

    @property
    def followers(self) -> tuple[KernelEvent, ...]:
        """The lines of the burst other than its root."""
        return tuple(event for event in self.events if event is not self.root)

    @property
    def stated_by(self) -> tuple[str, ...]:
        """Codes of findings by which NVML states this burst's fault: its root's first, then its hardware faults'."""
        entries = [self.xid, *(entry_of(event) for event in self.followers)]
        told = [entry for entry in entries if entry is self.xid or (entry and entry.kind is XidKind.HARDWARE)]
        return tuple(dict.fromkeys(code for entry in told if entry for code in entry.stated_by))


def find_device(snapshot: Snapshot, event: KernelEvent) -> Device | None:
    """The GPU of this snapshot that an event is about, by UUID or PCI bus id."""
    for device in snapshot.devices:
        if event.gpu_uuid is not None and device.id.uuid == event.gpu_uuid:
            return device
        if event.bus_id is not None and device.id.bus_id == event.bus_id:
            return device
    return None


def entry_of(event: KernelEvent) -> Xid | None:
    """What the catalogue says about an event; a GPU off the bus without an Xid counts as Xid 79."""
    code = _OFF_BUS_XID if event.kind is KernelEventKind.GPU_OFF_BUS else event.xid_code
    return None if code is None else xids().get(code)


def outcome_of(event: KernelEvent) -> Outcome:
    """The catalogue's outcome for an event, for NVLink 5 errors by the line's own words; unknown is WARN."""
    entry = entry_of(event)
    if entry is None:
        return Outcome.WARN
    bucket = None
    if event.unit is not None and event.subcode is not None:
        bucket = nvlink5_bucket(event.unit, event.subcode, event.error)
    if bucket == "look_elsewhere":
        return Outcome.WARN
    return entry.nonfatal_outcome if event.severity == "nonfatal" and bucket != "reset" else entry.outcome


def split_bursts(events: Iterable[KernelEvent]) -> tuple[tuple[KernelEvent, ...], ...]:
    """The events in groups with more than `BURST_SILENCE` between them; one without a time joins its neighbour."""
    bursts: list[list[KernelEvent]] = []
    latest = None
    for event in events:
        moment = None if isinstance(event.at, Missing) else event.at
        starts = not bursts or (moment is not None and latest is not None and moment - latest > BURST_SILENCE)
        if starts:
            bursts.append([])
        bursts[-1].append(event)
        ends = event.until or moment
        latest = ends if latest is None or (ends is not None and ends > latest) else latest
    return tuple(tuple(burst) for burst in bursts)


def gpu_bursts(snapshot: Snapshot, events: Iterable[KernelEvent]) -> tuple[GpuBurst, ...]:
    """One entry per GPU and burst; a GPU that only shows what another GPU's fault did to it has none."""
    about_gpus = (event for event in events if event.kind in _GPU_KINDS)
    found: list[GpuBurst] = []
    for burst in split_bursts(about_gpus):
        by_gpu: dict[str, list[KernelEvent]] = {}
        for event in burst:
            by_gpu.setdefault(_key(snapshot, event), []).append(event)
        parts = [_gpu_burst(snapshot, tuple(lines)) for lines in by_gpu.values()]
        found += [part for part in parts if not _is_consequence(part, parts)]
    return tuple(found)


def _gpu_burst(snapshot: Snapshot, events: tuple[KernelEvent, ...]) -> GpuBurst:
    root = min(events, key=_suspicion)  # the earliest of the most suspicious
    return GpuBurst(find_device(snapshot, root), events, root)


def _key(snapshot: Snapshot, event: KernelEvent) -> str:
    device = find_device(snapshot, event)
    if device is not None and not isinstance(device.id.bus_id, Missing):
        return device.id.bus_id
    return event.bus_id or event.gpu_uuid or ""


def _suspicion(event: KernelEvent) -> int:
    """How likely an event is the cause of its burst; lower is likelier."""
    entry = entry_of(event)
    if entry is None:
        return 1
    outcome = outcome_of(event)
    if outcome is Outcome.FAIL:
        return 0
    if outcome is Outcome.PASS and entry.kind is XidKind.HARDWARE:
        return 5
    return {
        XidKind.HARDWARE: 2,
        XidKind.DRIVER: 3,
        XidKind.APPLICATION: 4,
        XidKind.INFORMATIONAL: 5,
        XidKind.SYMPATHETIC: 6,
    }[entry.kind]


def _is_consequence(part: GpuBurst, parts: list[GpuBurst]) -> bool:
    """Whether another GPU's fault came first and explains this GPU's lines."""
    if part.xid is None or part.xid.kind in (XidKind.HARDWARE, XidKind.DRIVER):
        return False
    if any(event.recovery_action not in (None, "none") for event in part.events):
        return False
    return any(
        outcome_of(other.root) is Outcome.FAIL and not is_later(other.root, part.root)
        for other in parts
        if other is not part
    )


def is_later(event: KernelEvent, other: KernelEvent) -> bool:
    """Whether the first event was logged after the other; False where a time is missing."""
    if isinstance(event.at, Missing) or isinstance(other.at, Missing):
        return False
    return event.at > other.at
