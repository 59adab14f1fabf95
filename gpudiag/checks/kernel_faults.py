"""Check of what else the kernel log says about the machine: kills for memory, stuck tasks, failing parts.

Counters tell about the GPUs' own links and the host's memory; this is about what only the log tells.
"""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from gpudiag.checks.registry import FindingKind, Judgement, check, judged
from gpudiag.checks.subjects import short_bus_id
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing

WINDOW = timedelta(hours=24)  # gpudiag's own choice: what happened to the jobs of the last day

_warn = partial(FindingKind, outcome=Outcome.WARN, severity=Severity.TRIAGE, category=Category.SW_OTHER)

MEMORY_KILL = _warn(
    code="kernel.out_of_memory_kill",
    owner=Owner.JOB,
    meaning="Within the last day the kernel killed a process because memory ran out: the host's, or its cgroup's.",
    remedy="Give the job more memory, or use fewer DataLoader workers and a smaller prefetch.",
)
SOFT_LOCKUP = _warn(
    code="kernel.soft_lockup",
    owner=Owner.HOST,
    meaning="Within the last day a processor was stuck in the kernel for many seconds.",
    remedy="Read the trace below that line in `dmesg -T`; drain the machine and reboot it.",
)
BLOCKED_TASK = _warn(
    code="kernel.blocked_task",
    owner=Owner.HOST,
    meaning="Within the last day a process waited in the kernel for minutes: for a disk, a file server or a driver.",
    remedy="Read the trace below that line in `dmesg -T`: it names what is waited for.",
)
MACHINE_CHECK = _warn(
    code="kernel.machine_check",
    owner=Owner.HARDWARE,
    meaning="Within the last day the processor, or its memory, reported a hardware fault.",
    remedy="Read `ras-mc-ctl --summary` or the BMC's event log, and replace the part that it names.",
)
PCIE_ERROR = _warn(
    code="kernel.pcie_error",
    owner=Owner.HARDWARE,
    meaning="Within the last day a PCI Express device other than the GPUs met an error that was not corrected.",
    remedy="Look at that address with `lspci -vvs ADDRESS`; it may be the bridge above a GPU.",
)

_KINDS = {
    KernelEventKind.OUT_OF_MEMORY_KILL: MEMORY_KILL,
    KernelEventKind.SOFT_LOCKUP: SOFT_LOCKUP,
    KernelEventKind.BLOCKED_TASK: BLOCKED_TASK,
    KernelEventKind.MACHINE_CHECK: MACHINE_CHECK,
    KernelEventKind.PCIE_ERROR: PCIE_ERROR,
}


@check(
    "host.kernel_log",
    title="the kernel log reports no trouble of the last day",
    needs=("kernel_log",),
    reports=tuple(_KINDS.values()),
    reads=("kernel_log",),
    limit="no such line within 24 hours (own choice)",
    confirmed="the Linux kernel's own messages",
)
def host_kernel_log(context: Context) -> Judgement:
    """A finding for each kind of trouble, with how often and the last line."""
    log = context.snapshot.kernel_log
    assert not isinstance(log, Missing)  # noqa: S101 - the need saw to it
    return judged(*judge_kernel_log(context.snapshot, log))


def judge_kernel_log(snapshot: Snapshot, events: Iterable[KernelEvent]) -> tuple[Finding, ...]:
    """One finding per kind of trouble in the last day, in the order of the catalogue."""
    found: dict[KernelEventKind, list[KernelEvent]] = {}
    for event in events:
        if (
            event.kind in _KINDS
            and _is_recent(snapshot, event)
            and not _is_counted_elsewhere(snapshot, event)
        ):
            found.setdefault(event.kind, []).append(event)
    return tuple(_finding(snapshot, found[kind]) for kind in _KINDS if kind in found)


def _is_recent(snapshot: Snapshot, event: KernelEvent) -> bool:
    return isinstance(event.at, Missing) or snapshot.taken_at - event.at <= WINDOW


def _is_counted_elsewhere(snapshot: Snapshot, event: KernelEvent) -> bool:
    """Corrected errors, and those of the GPUs' own links, are judged by their counters."""
    if event.severity == "corrected":
        return True
    gpus = {device.id.bus_id for device in snapshot.devices}
    return event.kind is KernelEventKind.PCIE_ERROR and event.bus_id in gpus


def _finding(snapshot: Snapshot, events: list[KernelEvent]) -> Finding:
    last = events[-1]
    kind = _KINDS[last.kind]
    times = "once" if len(events) == 1 else f"{len(events)} times"
    facts = [
        Evidence("line", last.text[:200], source="kernel log"),
        Evidence("count", len(events), limit=0, source="kernel log of 24 hours"),
    ]
    if not isinstance(last.at, Missing):
        facts.append(Evidence("at", last.at.isoformat(timespec="seconds"), source="kernel log"))
    message = f"{_what(last)}, {times} within a day"
    return kind.finding(HostSubject(snapshot.host), message, *facts)


def _what(event: KernelEvent) -> str:
    who = f"{event.process or 'a process'} (pid {event.pid})"
    address = short_bus_id(event.bus_id) if event.bus_id else "an unknown address"
    return {
        KernelEventKind.OUT_OF_MEMORY_KILL: f"the kernel killed {who} because memory ran out",
        KernelEventKind.SOFT_LOCKUP: f"a processor was stuck in the kernel, in {who}",
        KernelEventKind.BLOCKED_TASK: f"{who} was stuck in the kernel for minutes",
        KernelEventKind.MACHINE_CHECK: "the processor or its memory reported a hardware fault",
        KernelEventKind.PCIE_ERROR: f"the PCI Express device at {address} met an error that was not corrected",
    }[event.kind]
