"""Check of what only the kernel log reports of the machine: kills for memory, stuck tasks, failing parts."""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from gpudiag.checks.links.pcie import uncorrected_since_boot
from gpudiag.checks.registry import Basis, FindingKind, Judgement, Restated, check, judged
from gpudiag.checks.subjects import device_subject, kernel_address, short_bus_id
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot, SourceState
from gpudiag.model.evidence import Evidence, HostSubject, Subject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing

WINDOW = timedelta(hours=24)  # gpudiag's our choice: what happened to the jobs of the last day

_warn = partial(FindingKind, outcome=Outcome.WARN, severity=Severity.TRIAGE, category=Category.SW_OTHER)

_KERNEL_SOFT_LOCKUP_BASIS = Basis(
    reads="kernel_log",
    limit="no such line within 24 hours (our choice), in a log that was read back to its start",
    look_also=(
        "dmesg -T | grep -i -A25 -e lockup -e rcu_ -e 'blocked for more than'",
        "gpu.hung",
        "process.dead",
    ),
)
_kind = partial(_warn, owner=Owner.HOST, basis=_KERNEL_SOFT_LOCKUP_BASIS)
_KERNEL_MACHINE_CHECK_BASIS = Basis(
    reads="kernel_log",
    limit="no such line within 24 hours (our choice), in a log that was read back to its start",
    look_also=(
        "dmesg -T | grep -e mce -e EDAC -e AER",
        "ras-mc-ctl --summary",
        "host.memory_uncorrected",
        "pcie.fatal_error",
    ),
)
MEMORY_KILL = _warn(
    code="kernel.out_of_memory_kill",
    owner=Owner.JOB,
    meaning=(
        "Within the last day the kernel killed a process because memory ran out: the host's, or its cgroup's."
    ),
    remedy="Give the job more memory, or use fewer DataLoader workers and a smaller prefetch.",
    basis=Basis(
        reads="kernel_log",
        limit="no such line within 24 hours (our choice), in a log that was read back to its start",
        look_also=("dmesg -T | grep -i 'out of memory'", "host.out_of_memory_kill", "host.memory_limit_low"),
    ),
)
SOFT_LOCKUP = _kind(
    code="kernel.soft_lockup",
    meaning="Within the last day a processor was stuck in the kernel for many seconds.",
    remedy="[host] Read the trace below that line in `dmesg -T`; drain the machine and reboot it.",
)
HARD_LOCKUP = _kind(
    code="kernel.hard_lockup",
    meaning="Within the last day a processor was stuck in the kernel with its interrupts off.",
    remedy=(
        "[hardware] Drain the machine and reboot it; if it comes back, look at firmware and the BMC's event"
        " log."
    ),
)
RCU_STALL = _kind(
    code="kernel.rcu_stall",
    meaning="Within the last day a processor did not run work that the kernel had deferred (an RCU stall).",
    remedy=(
        "[host] Read the trace below that line in `dmesg -T`; if it happens again, drain the machine and"
        " reboot it."
    ),
)
BLOCKED_TASK = _kind(
    code="kernel.blocked_task",
    meaning=(
        "Within the last day a process waited in the kernel for minutes:"
        " for a disk, a file server or a driver."
    ),
    remedy="Read the trace below that line in `dmesg -T`: it names what is waited for.",
)
MACHINE_CHECK = _warn(
    code="kernel.machine_check",
    owner=Owner.HARDWARE,
    meaning=(
        "Within the last day the processor, its memory or the firmware reported a"
        " hardware fault that was not corrected."
    ),
    remedy=(
        "[hardware] Read `ras-mc-ctl --summary` or the BMC's event log, and replace the part that it names."
    ),
    basis=_KERNEL_MACHINE_CHECK_BASIS,
)
PCIE_ERROR = _warn(
    code="kernel.pcie_error",
    owner=Owner.HARDWARE,
    meaning=(
        "Within the last day a PCI Express device had an error that was not"
        " corrected, and no counter shows it."
    ),
    remedy="Look at that address with `lspci -vvs ADDRESS`; it may be a GPU or the bridge above one.",
    basis=_KERNEL_MACHINE_CHECK_BASIS,
)
LOG_UNREAD = _warn(
    code="kernel.log_unread",
    owner=Owner.HOST,
    meaning=(
        "The kernel log is long, and gpudiag had time for its newest part only: older faults are unknown."
    ),
    remedy="See what fills it: `dmesg -T | tail -50`. For the whole of it: `dmesg | gpudiag explain -`.",
    severity=Severity.MONITOR,
    basis=Basis(
        reads="kernel_log",
        limit="no such line within 24 hours (our choice), in a log that was read back to its start",
        look_also=("dmesg -T | tail -50", "gpudiag explain FILE", "xid.hardware"),
    ),
)

# The kernel's next lines about the same error report its outcome.
_STATED_BY = ("kernel.pcie_recovery_failed", "kernel.pcie_link_down")
_RESTATED = "an error on its link was not corrected"
_PARTS = {"memory": "the host's memory", "processor": "the processor"}
_KINDS = {
    KernelEventKind.OUT_OF_MEMORY_KILL: MEMORY_KILL,
    KernelEventKind.SOFT_LOCKUP: SOFT_LOCKUP,
    KernelEventKind.HARD_LOCKUP: HARD_LOCKUP,
    KernelEventKind.RCU_STALL: RCU_STALL,
    KernelEventKind.BLOCKED_TASK: BLOCKED_TASK,
    KernelEventKind.MACHINE_CHECK: MACHINE_CHECK,
    KernelEventKind.PCIE_ERROR: PCIE_ERROR,
}


@check(
    "host.kernel_log",
    title="the kernel log reports no trouble within the last day",
    needs=("kernel_log",),
    reports=(*_KINDS.values(), LOG_UNREAD),
    readings=("kernel_log",),
    confirmed="the Linux kernel's own messages",
)
def host_kernel_log(context: Context) -> Judgement:
    """A finding for each kind of trouble, with its count and its last line."""
    log = context.snapshot.kernel_log
    assert not isinstance(log, Missing)  # noqa: S101 - the need saw to it
    found = judge_kernel_log(context.snapshot, log)
    restated = tuple(Restated(one, _STATED_BY, _RESTATED) for one in found if one.code == PCIE_ERROR.code)
    return judged(*found, *_judge_reading(context.snapshot), restated=restated)


def _judge_reading(snapshot: Snapshot) -> tuple[Finding, ...]:
    """A finding where part of the log was not read for lack of time."""
    status = snapshot.source("kernel_log")
    if status.state is not SourceState.TIMED_OUT:
        return ()
    message = f"a part of the kernel log was not read: {status.reason}"
    read = Evidence("reading", "cut short", limit="whole", source="kernel log")
    return (LOG_UNREAD.finding(HostSubject(snapshot.host), message, read),)


def judge_kernel_log(snapshot: Snapshot, events: Iterable[KernelEvent]) -> tuple[Finding, ...]:
    """One finding per kind of trouble in the last day and GPU, else the machine, in the catalogue's order."""
    found: dict[tuple[KernelEventKind, str], list[KernelEvent]] = {}
    for event in events:
        if event.kind in _KINDS and is_recent(snapshot, event) and not _is_counted_elsewhere(snapshot, event):
            found.setdefault((event.kind, _gpu_of(snapshot, event)), []).append(event)
    return tuple(
        _finding(snapshot, events) for kind in _KINDS for (of, _), events in found.items() if of is kind
    )


def _gpu_of(snapshot: Snapshot, event: KernelEvent) -> str:
    """The address of the GPU that the event is about; empty for the machine."""
    if event.bus_id is None:
        return ""
    return next((event.bus_id for device in snapshot.devices if device.id.bus_id == event.bus_id), "")


def is_recent(snapshot: Snapshot, event: KernelEvent) -> bool:
    """Whether the last of the lines that the event stands for was logged within `WINDOW`, or has no time."""
    return isinstance(event.last_at, Missing) or snapshot.taken_at - event.last_at <= WINDOW


def _is_counted_elsewhere(snapshot: Snapshot, event: KernelEvent) -> bool:
    """Whether counters judge the event: corrected errors, and those of a GPU's own link."""
    if event.severity == "corrected":
        return True
    if event.kind is not KernelEventKind.PCIE_ERROR:
        return False
    return any(
        uncorrected_since_boot(snapshot, device)
        for device in snapshot.devices
        if device.id.bus_id == event.bus_id
    )


def _finding(snapshot: Snapshot, events: list[KernelEvent]) -> Finding:
    last = events[-1]
    kind = _KINDS[last.kind]
    count = sum(1 + event.more for event in events)
    times = "once" if count == 1 else f"{count} times"
    facts = [
        Evidence("line", last.text, source="kernel log"),
        Evidence("count", count, limit=0, source="kernel log of 24 hours"),
    ]
    if not isinstance(last.at, Missing):
        facts.append(Evidence("at", last.at.isoformat(timespec="seconds"), source="kernel log"))
    message = f"{_what(last)}, {times} within a day"
    remedy = kind.written_remedy.replace("ADDRESS", kernel_address(last.bus_id)) if last.bus_id else ""
    subject = _subject(snapshot, last)
    return kind.finding(subject, message, *facts, remedy=remedy)


def _subject(snapshot: Snapshot, event: KernelEvent) -> Subject:
    """The GPU that the line is about, else the machine."""
    for device in snapshot.devices:
        if event.bus_id is not None and device.id.bus_id == event.bus_id:
            return device_subject(snapshot, device)
    return HostSubject(snapshot.host)


def _what(event: KernelEvent) -> str:
    who = f"{event.process or 'a process'} (pid {event.pid})"
    address = short_bus_id(event.bus_id) if event.bus_id else "an unknown address"
    return {
        KernelEventKind.OUT_OF_MEMORY_KILL: f"the kernel killed {who} because memory ran out",
        KernelEventKind.SOFT_LOCKUP: f"a processor was stuck in the kernel, in {who}",
        KernelEventKind.BLOCKED_TASK: f"{who} was stuck in the kernel for minutes",
        KernelEventKind.HARD_LOCKUP: "a processor was stuck in the kernel with its interrupts off",
        KernelEventKind.RCU_STALL: "a processor did not run work that the kernel had deferred (RCU stall)",
        KernelEventKind.MACHINE_CHECK: (
            f"{_PARTS.get(event.unit or '', 'the processor or its memory')} reported a"
            " hardware fault that was not corrected"
        ),
        KernelEventKind.PCIE_ERROR: (
            f"the PCI Express device at {address} had an error that was not corrected"
        ),
    }[event.kind]
