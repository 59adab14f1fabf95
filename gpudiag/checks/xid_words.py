"""How a GPU's fault is told: the sentence, and the evidence from the kernel log."""

from collections import Counter
from datetime import datetime

from gpudiag.checks.subjects import name_device, short_bus_id
from gpudiag.checks.xid_faults import GpuFault, Recovery
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing, Reading


def describe_fault(snapshot: Snapshot, fault: GpuFault) -> str:
    """What happened to which GPU and when: `GPU 5 (5d:00.0): 14:02 UTC Xid 79: the GPU has fallen ...`."""
    root, entry = fault.last.root, fault.last.xid
    what = _label(root) if root.xid_code is not None else f"{_label(root)}, without an Xid"
    if entry is not None:
        what += f": {entry.meaning[0].lower()}{entry.meaning[1:-1]}"
    times = f"{len(fault.bursts)} times, last " if len(fault.bursts) > 1 else ""
    return f"{_name(fault.last.device, root)}: {times}{_when(root.at, snapshot.taken_at)}{what}"


def cite_fault(snapshot: Snapshot, fault: GpuFault) -> str:
    """The same in short, behind the words of another finding: `Xid 79 at 14:02 UTC`."""
    root = fault.last.root
    when = _when(root.at, snapshot.taken_at).strip()
    times = f" ({len(fault.bursts)} times)" if len(fault.bursts) > 1 else ""
    return f"{_label(root)} at {when}{times}" if when else f"{_label(root)}{times}"


def say_request(action: str | None) -> str:
    """What the driver asks for to recover a GPU, as the first sentence of a remedy."""
    return f"The driver asks for {str(action).replace('_', ' ')}."


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
    """What the kernel log says, word for word, or NVML's event, and what it was followed by."""
    root = fault.last.root
    source = "kernel log" if root.text else "NVML event"
    facts = [Evidence("line", root.text[:200], source=source)] if root.text else []
    if root.xid_code is not None:
        facts.append(Evidence("xid", root.xid_code, source=source))
    if not isinstance(root.at, Missing):
        facts.append(Evidence("at", root.at.isoformat(timespec="seconds"), source=source))
    if root.process is not None or root.pid is not None:
        facts.append(Evidence("process", f"{root.process or '?'} (pid {root.pid})", source=source))
    if root.place is not None:
        facts.append(Evidence("place", root.place, source=source))
    if fault.last.followers:
        facts.append(Evidence("followers", _count(fault.last.followers), source=source))
    if fault.times > 1:
        facts.append(Evidence("bursts", fault.times, limit=1, source=f"{source} and history"))
    if recovery.action is not None:
        facts.append(Evidence("recovery_action", recovery.action, source=recovery.source))
    return tuple(facts)


def _count(events: tuple[KernelEvent, ...]) -> str:
    """`Xid 45 x8, Xid 154`."""
    counts: Counter[str] = Counter()
    for event in events:
        counts[_label(event)] += 1 + event.more
    return ", ".join(label if count == 1 else f"{label} x{count}" for label, count in counts.items())
