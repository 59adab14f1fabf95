"""Faults of GPUs among the Xids: lines of one burst are judged together, each fault named once."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpudiag.checks.gpu.xid_neighbours import (
    cause_named_by,
    count_lines,
    is_named_nvlink_error,
    is_nvlink_error,
)
from gpudiag.checks.per_device import memory_waits
from gpudiag.checks.subjects import name_device, short_bus_id
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Outcome
from gpudiag.model.kernel_log import BURST_SILENCE, KernelEvent, KernelEventKind
from gpudiag.model.number_ranges import count_of
from gpudiag.model.reading import Missing, Reading, is_without_word
from gpudiag.reference.vocabulary import UNFIT_ACTIONS
from gpudiag.reference.xid import Xid, XidKind, nvlink5_bucket, xids

# --- lines that belong together

_GPU_KINDS = (KernelEventKind.XID, KernelEventKind.GPU_OFF_BUS)
_OFF_BUS_XID = 79


@dataclass(frozen=True, slots=True)
class GpuBurst:
    """The lines about one GPU in one burst, oldest first, and their cause; `others` follow on other GPUs.

    `device` is None for a GPU that the snapshot does not list.
    """

    device: Device | None
    events: tuple[KernelEvent, ...]
    root: KernelEvent
    others: tuple[KernelEvent, ...] = ()

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
        """Codes of findings by which NVML states this fault: its root's first, then its hardware faults'."""
        entries = [self.xid, *(entry_of(event) for event in self.followers)]
        reported = [
            entry for entry in entries if entry is self.xid or (entry and entry.kind is XidKind.HARDWARE)
        ]
        return tuple(dict.fromkeys(code for entry in reported if entry for code in entry.stated_by))


def find_device(snapshot: Snapshot, event: KernelEvent) -> Device | None:
    """The GPU of this snapshot that an event is about, by UUID or PCI bus id."""
    for device in snapshot.devices:
        if event.gpu_uuid is not None and device.id.uuid == event.gpu_uuid:
            return device
        if event.bus_id is not None and device.id.bus_id == event.bus_id:
            return device
    return None


def entry_of(event: KernelEvent) -> Xid | None:
    """The catalogue's entry for an event, or for the cause that its line names; off the bus: Xid 79."""
    code = _OFF_BUS_XID if event.kind is KernelEventKind.GPU_OFF_BUS else event.xid_code
    entry = None if code is None else xids().get(code)
    return cause_named_by(event, entry) or entry


def outcome_of(event: KernelEvent) -> Outcome:
    """The catalogue's outcome for an event, for NVLink 5 errors by the line's own words; unknown is WARN."""
    entry = entry_of(event)
    if entry is None:
        return Outcome.WARN
    bucket = None
    if event.unit is not None and event.subcode is not None:
        bucket = nvlink5_bucket(event.unit, event.subcode, event.error)
    if bucket == "look_elsewhere" or (bucket == "watch" and event.severity == "nonfatal"):
        return Outcome.WARN
    return entry.nonfatal_outcome if event.severity == "nonfatal" and bucket != "reset" else entry.outcome


def split_bursts(events: Iterable[KernelEvent]) -> tuple[tuple[KernelEvent, ...], ...]:
    """The events in groups more than `BURST_SILENCE` apart; one without a time joins its neighbour."""
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
        of_other_gpus = [part for part in parts if _is_named_by_others(part, parts)]
        consequences = tuple(event for part in of_other_gpus for event in part.events)
        for part in parts:
            if part not in of_other_gpus and not _is_consequence(part, parts):
                found.append(
                    replace(part, others=consequences)
                    if consequences and is_nvlink_error(part.root)
                    else part
                )
    return tuple(found)


def _is_named_by_others(part: GpuBurst, parts: list[GpuBurst]) -> bool:
    """Whether only followers show the GPU's NVLink error, and another GPU's came first in the burst."""
    if not is_named_nvlink_error(part.root):
        return False
    return any(
        is_nvlink_error(other.root)
        and outcome_of(other.root) is Outcome.FAIL
        and is_later(part.root, other.root)
        for other in parts
    )


def _gpu_burst(snapshot: Snapshot, events: tuple[KernelEvent, ...]) -> GpuBurst:
    # The earliest of the most suspicious; of those a line of its own before one that is only named.
    root = min(events, key=lambda event: (_suspicion(event), event.caused_by_xid is not None))
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
    if any(asks_for_recovery(event) for event in part.events):
        return False
    return any(
        outcome_of(other.root) is Outcome.FAIL and not is_later(other.root, part.root)
        for other in parts
        if other is not part
    )


def is_later(event: KernelEvent, other: KernelEvent, by: timedelta = timedelta()) -> bool:
    """Whether the first event was logged later than the other by more than `by`; False without times."""
    if isinstance(event.at, Missing) or isinstance(other.at, Missing):
        return False
    return event.at - other.at > by


# --- one cause on one GPU

KERNEL_XID = 13  # an exception of a job's kernel
MIN_JOBS = 3  # that met it in one place: gpudiag's our choice; NVIDIA's workflow for Xid 13 gives no number
_ROW_XID = 63
# "New row marked for remapping, reset gpu to activate", "New page retired, reboot to activate"
_WAITS = "to activate"
_STORM_LINES = 10  # of one burst, from which on a message counts them: our choice
RECOVERY_XID = 154  # "GPU recovery action changed from ... to ..."


@dataclass(frozen=True, slots=True)
class GpuFault:
    """One cause on one GPU, in every burst that it made."""

    bursts: tuple[GpuBurst, ...]
    before: tuple[GpuBurst, ...] = ()  # in the stored history

    @property
    def last(self) -> GpuBurst:
        """The latest burst."""
        return self.bursts[-1]

    @property
    def times(self) -> int:
        """How many bursts there were, stored ones included."""
        return len(self.bursts) + len(self.before)

    @property
    def lives(self) -> int:
        """In how many lives of the GPU it came; bursts that nothing shows to be of one count as two.

        Bursts of one process are of one life: no GPU is reset in use. So is a burst without a request for
        recovery after one with it, as a driver asks once.
        """
        count, latest, asked = 0, None, False
        processes: set[int | None] = set()
        for burst in (*self.before, *self.bursts):
            asks = any(asks_for_recovery(event) for event in burst.events)
            of_burst = {event.pid for event in burst.events} - {None}
            goes_on = (asked and not asks) or bool(processes & of_burst)
            if latest is None or not goes_on or not _is_of_one_life(latest, burst.root):
                count, asked, processes = count + 1, False, set()
            latest, asked, processes = burst.root, asked or asks, processes | of_burst
        return count

    @property
    def first_at(self) -> Reading[datetime]:
        """When the first of them was logged."""
        return (*self.before, *self.bursts)[0].root.at

    @property
    def asked_for_recovery(self) -> bool:
        """Whether the driver logged, with one of these bursts, that the GPU must be recovered."""
        return any(asks_for_recovery(event) for burst in self.bursts for event in burst.events)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery that the driver asks for, and where that was read; `action` None: not known."""

    action: str | None
    source: str


def asks_for_recovery(event: KernelEvent) -> bool:
    """Whether the line is the driver's request to recover the GPU."""
    return event.recovery_action not in (None, "none")


def is_unfit(action: str | None) -> bool:
    """Whether the GPU needs that recovery before it is used again; an unknown one counts as needed."""
    return action in UNFIT_ACTIONS or (action is not None and is_without_word(action))


def collect_faults(
    snapshot: Snapshot, events: Iterable[KernelEvent], earlier: Iterable[KernelEvent] = ()
) -> tuple[GpuFault, ...]:
    """The faults among `events`; `earlier` are stored ones, which only count as repeats."""
    before: dict[tuple[str, int | None], list[GpuBurst]] = {}
    for burst in gpu_bursts(snapshot, earlier):
        before.setdefault(_fault_key(burst), []).append(burst)
    faults: dict[tuple[str, int | None], list[GpuBurst]] = {}
    for burst in gpu_bursts(snapshot, events):
        faults.setdefault(_fault_key(burst), []).append(burst)
    return tuple(GpuFault(tuple(bursts), tuple(before.get(key, ()))) for key, bursts in faults.items())


def collect_xids(snapshot: Snapshot, reported: Iterable[KernelEvent]) -> tuple[KernelEvent, ...]:
    """The events of the kernel log, and NVML's events that are not in it, oldest first."""
    log = () if isinstance(snapshot.kernel_log, Missing) else snapshot.kernel_log
    logged = {(_gpu_of(snapshot, event), event.xid_code) for event in log}
    events = list(log)
    for event in reported:
        if (_gpu_of(snapshot, event), event.xid_code) not in logged:
            later = (place for place, other in enumerate(events) if is_later(other, event))
            events.insert(next(later, len(events)), event)
    return tuple(events)


def _gpu_of(snapshot: Snapshot, event: KernelEvent) -> object:
    """The GPU that the event is about, as one key however the event names it."""
    device = find_device(snapshot, event)
    return (event.gpu_uuid, event.bus_id) if device is None else device.id


def read_recovery(fault: GpuFault) -> Recovery:
    """The driver's current answer where NVML gives one, otherwise the last Xid 154 of these bursts."""
    device = fault.last.device
    if device is not None and not isinstance(device.recovery_action, Missing):
        return Recovery(device.recovery_action, "NVML field 230")
    # What was asked for before the GPU was restarted is asked for no longer.
    asked = [
        event.recovery_action
        for burst in fault.bursts
        for event in burst.events
        if event.recovery_action and event.restarted_by is None
    ]
    # Without NVML's current answer a "none" that was logged earlier settles nothing.
    action = asked[-1] if asked and asked[-1] != "none" else None
    return Recovery(action, f"Xid {RECOVERY_XID}")


# --- whether the GPU was restarted since

# A GPU's reset takes longer, so lines that are nearer to each other are of one life of the GPU.
_ONE_LIFE = timedelta(seconds=5)


def find_restart(fault: GpuFault) -> Evidence | None:
    """The proof that the GPU was restarted after the fault, else None: a later line of the kernel log.

    `nvidia-smi --gpu-reset` logs nothing; but then a row of memory that waited for a reset waits no longer.
    """
    burst = fault.last
    grave = [one for one in burst.events if one is burst.root or outcome_of(one) is Outcome.FAIL]
    if all(_is_before_restart(event) for event in grave):
        return Evidence("restarted_by", grave[-1].restarted_by or "", source="kernel log")
    still = None if burst.device is None else memory_waits(burst.device)
    if still is None or still[1]:
        return None
    waited = [event for event in burst.events if event.xid_code == _ROW_XID and _WAITS in event.text]
    if waited and not any(is_later(event, waited[-1], by=_ONE_LIFE) for event in grave):
        return Evidence(still[0], False, source="NVML; Xid 63 had set it")
    return None


def how_to_report_reset(event: KernelEvent, bus_id: str | None) -> str:
    """How root reports to gpudiag that the GPU, or without an address all, were reset after that line."""
    at = event.last_at
    since = "since" if isinstance(at, Missing) else f"after {at:%H:%M} UTC on {at:%Y-%m-%d}"
    event_words = "all GPUs were reset" if bus_id is None else f"{short_bus_id(bus_id)} was reset"
    return (
        f"A GPU reset leaves no trace that gpudiag can see. If it was done {since}, report it: "
        f"`echo 'gpudiag: {event_words}' | sudo tee /dev/kmsg`."
    )


def _is_of_one_life(earlier: KernelEvent, later: KernelEvent) -> bool:
    """Whether no restart of the GPU or of the machine is known between the two lines."""
    at = earlier.restarted_at
    restarted = at is not None and not isinstance(later.at, Missing) and at <= later.at
    return earlier.boot_id == later.boot_id and not restarted


def _is_before_restart(event: KernelEvent) -> bool:
    """Whether a line, and those it stands for, were all logged before its GPU was restarted."""
    if event.restarted_by is None:
        return False
    return event.until is None or (event.restarted_at is not None and event.until < event.restarted_at)


def _fault_key(burst: GpuBurst) -> tuple[str, int | None]:
    root = burst.root
    entry = entry_of(root)
    where = root.bus_id or root.gpu_uuid or ""
    if burst.device is not None and not isinstance(burst.device.id.bus_id, Missing):
        where = burst.device.id.bus_id
    return where, entry.code if entry else root.xid_code


@dataclass(frozen=True, slots=True)
class BadPlace:
    """Where on the GPU several jobs met the same exception, and none met one elsewhere."""

    place: str
    jobs: int


def find_bad_place(fault: GpuFault, others: Iterable[GpuFault]) -> BadPlace | None:
    """The place of a GPU where several jobs met Xid 13; None if a job met it elsewhere too: its own error."""
    if fault.last.root.xid_code != KERNEL_XID:
        return None
    elsewhere = [event for other in others if other is not fault for event in _exceptions(other)]
    places: set[str] = set()
    jobs: set[object] = set()
    for burst in (*fault.before, *fault.bursts):
        for event in burst.events:
            if event.place is None or any(_is_together(event, other) for other in elsewhere):
                continue
            places.add(event.place)
            jobs.add(event.pid if event.pid is not None else burst.root.at)
    return BadPlace(places.pop(), len(jobs)) if len(places) == 1 and len(jobs) >= MIN_JOBS else None


def _exceptions(fault: GpuFault) -> Iterable[KernelEvent]:
    for burst in fault.bursts:
        yield from (event for event in burst.events if event.xid_code == KERNEL_XID)


def _is_together(event: KernelEvent, other: KernelEvent) -> bool:
    """Whether one job may have caused both events."""
    if isinstance(event.at, Missing) or isinstance(other.at, Missing):
        return True
    return abs(event.at - other.at) <= BURST_SILENCE


def describe_fault(snapshot: Snapshot, fault: GpuFault) -> str:
    """What happened to which GPU and when: `GPU 5 (5d:00.0): 14:02 UTC Xid 79: the GPU has fallen ...`."""
    root, entry = fault.last.root, fault.last.xid
    what = _label_root(root, entry) if root.xid_code is not None else f"{_label(root)}, without an Xid"
    if entry is not None:
        what += f": {entry.meaning[0].lower()}{entry.meaning[1:-1]}"
    times = f"{len(fault.bursts)} times, last " if len(fault.bursts) > 1 else ""
    return (
        f"{_name(fault.last.device, root)}:"
        f" {times}{_when(root.at, snapshot.taken_at)}{what}{_storm(snapshot, fault)}"
    )


def _storm(snapshot: Snapshot, fault: GpuFault) -> str:
    """How many lines one burst made, and until when, where they are many."""
    lines, last = _lines_of_root(fault.last)
    when = _when(last, snapshot.taken_at).strip()
    return f" ({lines} lines{', the last ' + when if when else ''})" if lines >= _STORM_LINES else ""


def _lines_of_root(burst: GpuBurst) -> tuple[int, Reading[datetime]]:
    """How many lines of the burst are alike its root's, and when the last of them was logged."""
    alike = [
        event
        for event in burst.events
        if (event.kind, event.xid_code) == (burst.root.kind, burst.root.xid_code)
    ]
    return count_lines(alike), alike[-1].last_at


def _label_root(root: KernelEvent, entry: Xid | None) -> str:
    """The Xid that the fault is about, and the one whose line names it where that is another."""
    if entry is not None and entry.code == root.caused_by_xid:
        return f"Xid {entry.code} (named by Xid {root.xid_code})"
    return _label(root)


def cite_fault(snapshot: Snapshot, fault: GpuFault) -> str:
    """The fault in short, to follow another finding's message: `Xid 79 at 14:02 UTC`."""
    root = fault.last.root
    when = _when(root.at, snapshot.taken_at).strip()
    times = f" ({len(fault.bursts)} times)" if len(fault.bursts) > 1 else ""
    label = _label_root(root, fault.last.xid)
    return f"{label} at {when}{times}" if when else f"{label}{times}"


def _label(event: KernelEvent) -> str:
    """`Xid 149 (NETIR_LINK_EVT, link 8, subcode 4)`, or `off the bus` for the line that has no number."""
    if event.kind is KernelEventKind.GPU_OFF_BUS:
        return "off the bus"
    if event.unit is None:
        return f"Xid {event.xid_code}"
    link = "" if event.link is None else f", link {event.link}"
    return f"Xid {event.xid_code} ({event.unit}{link}, subcode {event.subcode})"


def _name(device: Device | None, event: KernelEvent) -> str:
    if device is not None:
        return name_device(device)
    if event.bus_id is not None:
        return f"the GPU at {short_bus_id(event.bus_id)}"
    return event.gpu_uuid or "a GPU"


def _when(at: Reading[datetime], now: datetime) -> str:
    if isinstance(at, Missing):
        return ""
    layout = "%H:%M UTC " if at.date() == now.date() else "%Y-%m-%d %H:%M UTC "
    return at.strftime(layout)


def fault_evidence(fault: GpuFault, recovery: Recovery) -> tuple[Evidence, ...]:
    """The kernel log's own words, or NVML's event, and what followed it."""
    root = fault.last.root
    source = "kernel log" if root.text else "NVML event"
    facts = [Evidence("line", root.text, source=source)] if root.text else []
    if root.xid_code is not None:
        facts.append(Evidence("xid", root.xid_code, source=source))
    if not isinstance(root.at, Missing):
        facts.append(Evidence("at", root.at.isoformat(timespec="seconds"), source=source))
    if root.process is not None or root.pid is not None:
        facts.append(Evidence("process", f"{root.process or '?'} (pid {root.pid})", source=source))
    if root.place is not None:
        facts.append(Evidence("place", root.place, source=source))
    lines, last = _lines_of_root(fault.last)
    if lines >= _STORM_LINES:
        facts.append(Evidence("count", lines, source=source))
        if not isinstance(last, Missing):
            facts.append(Evidence("last_at", last.isoformat(timespec="seconds"), source=source))
    if fault.last.others:
        facts.append(Evidence("on_other_gpus", _count_named(fault.last.others), source=source))
    if fault.last.followers:
        facts.append(Evidence("followers", _count(fault.last.followers), source=source))
    if fault.times > 1:
        facts.append(Evidence("bursts", fault.times, limit=1, source=f"{source} and history"))
    if recovery.action is not None:
        facts.append(Evidence("recovery_action", recovery.action, source=recovery.source))
    return tuple(facts)


def _count_named(events: tuple[KernelEvent, ...]) -> str:
    """`Xid 145 named by Xid 45 x9 on 3 GPUs`."""
    gpus = len({event.bus_id or event.gpu_uuid for event in events})
    counts: Counter[str] = Counter()
    for event in events:
        counts[_label_root(event, entry_of(event))] += 1 + event.more
    names = ", ".join(f"{label} x{count}" for label, count in counts.items())
    return f"{names} on {count_of(gpus, 'GPU')}"


def _count(events: tuple[KernelEvent, ...]) -> str:
    """`Xid 45 x8, Xid 154`."""
    counts: Counter[str] = Counter()
    for event in events:
        counts[_label(event)] += 1 + event.more
    return ", ".join(label if count == 1 else f"{label} x{count}" for label, count in counts.items())
