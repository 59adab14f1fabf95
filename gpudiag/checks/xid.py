"""Checks of what the driver wrote into the kernel log about GPUs: Xids, and GPUs that fell off the bus.

What the driver itself asks for to recover a GPU goes before the catalogue: NVML's field 230, which is
current, and otherwise the last Xid 154. A fault for which the driver asked for a recovery, and now asks
for none, is settled: history, not a FAIL.
"""

from collections.abc import Iterable
from datetime import timedelta

from gpudiag.checks.allocation import granted
from gpudiag.checks.bursts import GpuBurst, outcome_of
from gpudiag.checks.needs import NO_TRACE
from gpudiag.checks.registry import FindingKind, Judgement, Restated, check, does_not_apply, judged
from gpudiag.checks.subjects import device_subject
from gpudiag.checks.traces import traces_for
from gpudiag.checks.xid_faults import RECOVERY_XID, GpuFault, Recovery, collect_faults, read_recovery
from gpudiag.checks.xid_words import cite_fault, describe_fault, fault_evidence, say_request
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.kernel_log import KernelEvent, is_same_event
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.xid import XidKind, action_text, escalated, nvlink5_advice

# What a job did is of interest while its owner may still look; what a GPU did, for a week after it was
# settled. gpudiag's own choice: the anchors have 3 days (gpud) to 7 days (NVSentinel).
APPLICATION_WINDOW = timedelta(hours=24)
# A driver that asks for nothing, and never did, may not know how to ask: the catalogue is believed for a day.
UNASKED_WINDOW = timedelta(hours=24)
SETTLED_WINDOW = timedelta(days=7)
# A fault that was here longer ago is another story. gpudiag's own choice: a month of jobs on one machine.
REPEAT_WINDOW = timedelta(days=30)

XID_HARDWARE = FindingKind(
    code="xid.hardware",
    outcome=Outcome.FAIL,
    severity=Severity.RESET,
    category=Category.SW_XID,
    owner=Owner.HARDWARE,
    meaning="The driver reported a fault of the GPU, and nothing says that it has been settled since.",
    remedy="Drain the GPU and do what the Xid asks for; `gpudiag explain xid N` has the details.",
    stated=True,
)
XID_REPEATED = FindingKind(
    code="xid.repeated",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.SW_XID,
    owner=Owner.HARDWARE,
    meaning="The same fault of the same GPU came back: what was done about it did not help.",
    remedy="Take the next step: reset, power cycle, replacement.",
    stated=True,
)
XID_SETTLED = FindingKind(
    code="xid.settled",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_XID,
    owner=Owner.HARDWARE,
    meaning="The GPU had a fault within the last week; the driver now asks for no recovery.",
    remedy="Nothing now; if it comes back, have the GPU looked at.",
)
XID_WEAR = FindingKind(
    code="xid.wear",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_XID,
    owner=Owner.HARDWARE,
    meaning="The GPU had an error that it contained or corrected.",
    remedy="Watch it; reset the GPU when it is next free.",
)
XID_APPLICATION = FindingKind(
    code="xid.application",
    outcome=Outcome.WARN,
    severity=Severity.NONE,
    category=Category.SW_XID,
    owner=Owner.JOB,
    meaning="A job made an error on the GPU within the last day; the GPU is fine.",
    remedy="Look for the fault in the job's own code.",
)
XID_DRIVER = FindingKind(
    code="xid.driver",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_XID,
    owner=Owner.SOFTWARE,
    meaning="The driver or its firmware made an error within the last day.",
    remedy="Update the driver; if it comes back, report it with `nvidia-bug-report.sh`.",
)
XID_UNKNOWN = FindingKind(
    code="xid.unknown",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.SW_XID,
    owner=Owner.HARDWARE,
    meaning="The driver reported an Xid that gpudiag's catalogue does not have.",
    remedy="Look it up in NVIDIA's Xid catalog and update gpudiag.",
)
XID_OTHER_GPU = FindingKind(
    code="xid.other_gpu",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_XID,
    owner=Owner.HOST,
    meaning="A GPU of this machine that this job or container was not given had a fault.",
    remedy="Tell the machine's owner; this job's GPUs are not affected.",
)
XID_NOTE = FindingKind(
    code="xid.note",
    outcome=Outcome.PASS,
    severity=Severity.NONE,
    category=Category.SW_XID,
    owner=Owner.JOB,
    meaning="The driver reported something within the last day that is no fault.",
    remedy="Nothing has to be done.",
)

# The driver's words for "not fit for work until this is done", as in `devices.gpu_lost`.
_UNFIT_ACTIONS = ("gpu_reset", "node_reboot", "drain_and_reset", "bus_reset", "system_reboot")


@check(
    "xid.kernel_log",
    title="the kernel log reports no GPU fault (Xid)",
    needs=("kernel_log",),
    reports=(
        XID_HARDWARE, XID_REPEATED, XID_SETTLED, XID_WEAR, XID_APPLICATION, XID_DRIVER, XID_UNKNOWN,
        XID_OTHER_GPU, XID_NOTE,
    ),
    reads=("kernel_log", "recovery_action"),
    limit="NVIDIA's Xid catalog; the driver's own recovery action goes before it",
)  # fmt: skip
def xid_kernel_log(context: Context) -> Judgement:
    """A finding for each GPU and cause among the Xids of this boot."""
    log = context.snapshot.kernel_log
    assert not isinstance(log, Missing)  # noqa: S101 - the need saw to it
    found = _judge_faults(context.snapshot, log, _of_earlier_runs(context, log))
    if not found and not traces_for(context):
        return does_not_apply(NO_TRACE)
    restated = tuple(_restated(context.snapshot, fault, finding) for fault, finding in found)
    return judged(*(finding for _, finding in found), restated=restated)


def _of_earlier_runs(context: Context, log: Iterable[KernelEvent]) -> tuple[KernelEvent, ...]:
    """The stored events that the log does not have any more, for it forgets with every boot.

    Those of a board that was here before another took its place, and those of long ago, are left out.
    """
    if isinstance(context.history, Missing):
        return ()
    here: dict[str, list[KernelEvent]] = {}
    for event in log:
        here.setdefault(event.text, []).append(event)
    return tuple(
        event
        for event in context.history.kernel_events
        if not any(is_same_event(event, other) for other in here.get(event.text, ()))
        and not isinstance(event.at, Missing)
        and context.snapshot.taken_at - event.at <= REPEAT_WINDOW
        and not _is_of_another_board(context.snapshot, event)
    )


def _is_of_another_board(snapshot: Snapshot, event: KernelEvent) -> bool:
    """Whether the GPU that the event was about has left its place to another."""
    if event.gpu_uuid is None:
        return False
    here = {device.id.bus_id: device.id.uuid for device in snapshot.devices}
    uuid = here.get(event.bus_id or "")
    return uuid is not None and not isinstance(uuid, Missing) and uuid != event.gpu_uuid


def judge_xids(
    snapshot: Snapshot, events: Iterable[KernelEvent], earlier: Iterable[KernelEvent] = ()
) -> tuple[Finding, ...]:
    """Findings about `events`, worst first; `earlier` are stored ones, which only count as repeats."""
    return tuple(finding for _, finding in _judge_faults(snapshot, events, earlier))


def _judge_faults(
    snapshot: Snapshot, events: Iterable[KernelEvent], earlier: Iterable[KernelEvent]
) -> tuple[tuple[GpuFault, Finding], ...]:
    """Each fault with its finding, worst first, without those that are too old to matter."""
    judged_faults = (
        (fault, _judge_fault(snapshot, fault)) for fault in collect_faults(snapshot, events, earlier)
    )
    found = [(fault, finding) for fault, finding in judged_faults if finding is not None]
    order = (Outcome.FAIL, Outcome.WARN, Outcome.PASS)
    return tuple(sorted(found, key=lambda pair: order.index(pair[1].outcome)))


def _restated(snapshot: Snapshot, fault: GpuFault, finding: Finding) -> Restated:
    """By which findings NVML states the same fault now, and what this one adds to them."""
    action = read_recovery(fault).action
    again = _say_again(fault) if finding.code == XID_REPEATED.code else ""
    request = say_request(action) if action in _UNFIT_ACTIONS else ""
    return Restated(finding, fault.last.stated_by, cite_fault(snapshot, fault), again, request)


def _judge_fault(snapshot: Snapshot, fault: GpuFault) -> Finding | None:
    recovery = read_recovery(fault)
    kind = _kind(snapshot, fault, recovery)
    if kind is None:
        return None
    root, device = fault.last.root, fault.last.device
    subject = _subject(snapshot, device, root)
    evidence = fault_evidence(fault, recovery)
    remedy = _remedy(fault, recovery, kind)
    return kind.finding(subject, describe_fault(snapshot, fault), *evidence, remedy=remedy)


def _kind(snapshot: Snapshot, fault: GpuFault, recovery: Recovery) -> FindingKind | None:
    """What the fault amounts to; None for what is too old to matter."""
    burst = fault.last
    entry, outcome = burst.xid, outcome_of(burst.root)
    unfit = recovery.action in _UNFIT_ACTIONS and _is_about(burst, recovery)
    if burst.device is None and _is_part(snapshot):
        recent = _is_recent(snapshot, burst, SETTLED_WINDOW)
        return XID_OTHER_GPU if recent and (unfit or outcome is Outcome.FAIL) else None
    if unfit:
        return XID_HARDWARE
    if outcome is Outcome.FAIL:
        return _fail_kind(snapshot, fault, recovery)
    if entry is None or entry.kind is XidKind.HARDWARE:
        kind = XID_UNKNOWN if entry is None else XID_WEAR
        return kind if _is_recent(snapshot, burst, SETTLED_WINDOW) else None
    if not _is_recent(snapshot, burst, APPLICATION_WINDOW):
        return None
    if outcome is Outcome.PASS:
        return XID_NOTE
    return XID_APPLICATION if entry.kind is XidKind.APPLICATION else XID_DRIVER


def _fail_kind(snapshot: Snapshot, fault: GpuFault, recovery: Recovery) -> FindingKind | None:
    if fault.times > 1:
        return XID_REPEATED
    if recovery.action != "none":
        return XID_HARDWARE
    if not fault.asked_for_recovery and _is_recent(snapshot, fault.last, UNASKED_WINDOW):
        return XID_HARDWARE
    return XID_SETTLED if _is_recent(snapshot, fault.last, SETTLED_WINDOW) else None


def _is_about(burst: GpuBurst, recovery: Recovery) -> bool:
    """Whether what the driver asks for is because of this burst, and not of another on the same GPU."""
    entry = burst.xid
    if entry is None or entry.kind is XidKind.HARDWARE or burst.root.xid_code == RECOVERY_XID:
        return True
    return any(event.recovery_action == recovery.action for event in burst.events)


def _is_part(snapshot: Snapshot) -> bool:
    """Whether this process was given a part of the machine's GPUs, and has every GPU that it was given."""
    machine = snapshot.machine
    grant = granted(machine.allocation)
    given = None if grant is None else grant[1]
    if given is None and machine.container is not None and not isinstance(machine.device_nodes, Missing):
        given = sum(1 for node in machine.device_nodes if node.removeprefix("/dev/nvidia").isdecimal())
    listed = sum(1 for device in snapshot.devices if not isinstance(device.id.nvml_index, Missing))
    return given is not None and listed >= given


def _is_recent(snapshot: Snapshot, burst: GpuBurst, window: timedelta) -> bool:
    """Whether the burst's root is younger than `window`; one without a time is."""
    at = burst.root.at
    return isinstance(at, Missing) or snapshot.taken_at - at <= window


def _subject(snapshot: Snapshot, device: Device | None, event: KernelEvent) -> DeviceSubject:
    if device is not None:
        return device_subject(snapshot, device)
    absent = Missing(MissingReason.SOURCE_ABSENT)
    return DeviceSubject(event.gpu_uuid or absent, event.bus_id or absent, absent, snapshot.host)


def _remedy(fault: GpuFault, recovery: Recovery, kind: FindingKind) -> str:
    told = _remedy_of_code(fault, recovery, kind)
    root = fault.last.root
    decoded = None if root.unit is None or root.subcode is None else nvlink5_advice(root.unit, root.subcode)
    return f"{told} {decoded}" if told and decoded else told


def _remedy_of_code(fault: GpuFault, recovery: Recovery, kind: FindingKind) -> str:
    entry = fault.last.xid
    if kind in (XID_SETTLED, XID_UNKNOWN, XID_OTHER_GPU):
        return ""
    if recovery.action in _UNFIT_ACTIONS and kind is not XID_REPEATED:
        return f"The driver asks for {str(recovery.action).replace('_', ' ')}: drain the GPU and do it."
    if entry is None:
        return ""
    if kind is XID_REPEATED:
        return f"{_say_again(fault)} {action_text(escalated(entry.immediate))}"
    return action_text(entry.immediate)


def _say_again(fault: GpuFault) -> str:
    again = fault.times - 1
    since = "" if isinstance(fault.first_at, Missing) else f" since {fault.first_at:%Y-%m-%d}"
    return f"It came back {'once' if again == 1 else f'{again} times'}{since}."
