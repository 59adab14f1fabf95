"""Checks of the driver's lines in the kernel log about GPUs: Xids, and GPUs that fell off the bus.

The driver's request to recover a GPU (NVML field 230, else the last Xid 154) goes before the catalogue. A
fault is settled if that request is gone, the GPU was restarted and works, or it works days later and cannot
be asked; not if neither a reset nor a reboot repairs the damage.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial

from gpudiag.checks.gpu.availability import granted
from gpudiag.checks.gpu.xid_faults import (
    RECOVERY_XID,
    BadPlace,
    GpuBurst,
    GpuFault,
    Recovery,
    asks_for_recovery,
    cite_fault,
    collect_faults,
    collect_xids,
    describe_fault,
    fault_evidence,
    find_bad_place,
    find_restart,
    how_to_report_reset,
    is_unfit,
    outcome_of,
    read_recovery,
)
from gpudiag.checks.gpu.xid_neighbours import STATED_BY_NEIGHBOURS, has_link_error_beside
from gpudiag.checks.needs import NO_TRACE
from gpudiag.checks.registry import (
    ONE_H100,
    ONE_H200,
    Basis,
    FindingKind,
    Judgement,
    Restated,
    check,
    does_not_apply,
    judged,
    not_readable,
)
from gpudiag.checks.subjects import device_subject
from gpudiag.checks.traces import traces_for
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.kernel_log import KernelEvent, is_same_event
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.vocabulary import name_action
from gpudiag.reference.xid import XidKind, escalated, nvlink5_advice, written_action

# A job's fault matters while its owner may still look; a GPU's, for a week after it was
# settled. gpudiag's our choice: the anchors have 3 days (gpud) to 7 days (NVSentinel).
APPLICATION_WINDOW = timedelta(hours=24)
# A driver that never asked for anything, or cannot be asked, may not know how to ask: the catalogue is
# believed for a day.
UNASKED_WINDOW = timedelta(hours=24)
SETTLED_WINDOW = timedelta(days=7)
# Older faults are not counted as repeats. gpudiag's our choice: a month of jobs on one machine.
REPEAT_WINDOW = timedelta(days=30)

_XID_HARDWARE_BASIS = Basis(
    reads=(
        "The kernel log of this boot (/dev/kmsg, syslog files, the journal), in bursts that end"
        " after 3 minutes of silence; the root of each burst; later lines that prove a restart of"
        " the GPU (the driver was loaded, the device was reset or found again); NVML field 230."
        " In the service NVML's Xid events too."
    ),
    limit="NVIDIA's Xid catalog; the driver's own recovery action takes precedence",
    look_also=("xid 79", "dmesg -T | grep NVRM", "gpu.recovery_needed", "nvidia-bug-report.sh"),
)
_hardware_kind = partial(
    FindingKind, category=Category.SW_XID, owner=Owner.HARDWARE, basis=_XID_HARDWARE_BASIS
)
_XID_APPLICATION_BASIS = Basis(
    reads=(
        "The kernel log of the last 24 hours, in bursts that end after 3 minutes of silence."
        " In the service NVML's Xid events too."
    ),
    limit="NVIDIA's Xid catalog; the driver's own recovery action takes precedence",
    look_also=("xid 13", "xid 31", "dmesg -T | grep NVRM", "compute-sanitizer PROGRAM"),
)
_application_kind = partial(FindingKind, category=Category.SW_XID, basis=_XID_APPLICATION_BASIS)
_XID_UNKNOWN_BASIS = Basis(
    reads="The kernel log of the last 7 days of this boot. In the service NVML's Xid events too.",
    limit="NVIDIA's Xid catalog; the driver's own recovery action takes precedence",
    look_also=("dmesg -T | grep NVRM", "nvidia-smi -q"),
)
XID_HARDWARE = _hardware_kind(
    code="xid.hardware",
    outcome=Outcome.FAIL,
    severity=Severity.RESET,
    meaning="The driver reported a fault of the GPU, and nothing shows that it was settled since.",
    remedy="Drain the GPU and do what the Xid asks for; `gpudiag explain xid N` has the details.",
    stated=True,
)
XID_REPEATED = _hardware_kind(
    code="xid.repeated",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="The same GPU has the same fault again: the last remedy did not help.",
    remedy="[hardware] Take the next step: reset, power cycle, replacement.",
    stated=True,
)
XID_SETTLED = _hardware_kind(
    code="xid.settled",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning=(
        "The GPU had a fault within the last week and has recovered: the driver asks for nothing now,"
        " or the GPU was restarted since and works."
    ),
    remedy="No action now; if it comes back, have the GPU examined.",
)
XID_WEAR = _hardware_kind(
    code="xid.wear",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning=(
        "The GPU had an error that it contained or corrected, or the driver asks"
        " for a step that leaves it usable."
    ),
    remedy="Watch it; [reset: reset the GPU] when it is next free.",
)
XID_APPLICATION = _application_kind(
    code="xid.application",
    outcome=Outcome.WARN,
    severity=Severity.NONE,
    owner=Owner.JOB,
    meaning="A job caused an error on the GPU within the last day; the GPU is fine.",
    remedy="Look for the fault in the job's own code.",
)
XID_DRIVER = _application_kind(
    code="xid.driver",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    owner=Owner.SOFTWARE,
    meaning="The driver or its firmware had an error within the last day.",
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
    basis=_XID_UNKNOWN_BASIS,
)
XID_OTHER_GPU = FindingKind(
    code="xid.other_gpu",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_XID,
    owner=Owner.HOST,
    meaning="A GPU that belongs to this machine, but not to this job or container, had a fault.",
    remedy="Notify the machine's owner; this job's GPUs are not affected.",
    basis=_XID_UNKNOWN_BASIS,
)
XID_NOTE = _application_kind(
    code="xid.note",
    outcome=Outcome.PASS,
    severity=Severity.NONE,
    owner=Owner.JOB,
    meaning="The driver reported something within the last day that is not a fault.",
    remedy="No action is needed.",
)

# The catalogue's own words for it begin "If it comes back"; here it did.
REPLACE = (
    "[hardware] Send `nvidia-bug-report.sh` and the serial number to the vendor's support,"
    " and have the GPU examined or replaced."
)
# What no software can recover.
_BY_HAND = ("restart_machine", "check_mechanics")


@check(
    "xid.kernel_log",
    title="the kernel log reports no GPU fault (Xid)",
    needs=("xids",),
    reports=(
        XID_HARDWARE,
        XID_REPEATED,
        XID_SETTLED,
        XID_WEAR,
        XID_APPLICATION,
        XID_DRIVER,
        XID_UNKNOWN,
        XID_OTHER_GPU,
        XID_NOTE,
    ),
    readings=("kernel_log", "recovery_action"),
    confirmed=f"Xid 31 on {ONE_H100}; Xid 13 and 43 on {ONE_H200}",
)
def xid_kernel_log(context: Context) -> Judgement:
    """A finding for each GPU and cause among the Xids of this boot."""
    log = context.snapshot.kernel_log
    events = collect_xids(context.snapshot, context.xid_events)
    found = judge_faults(context.snapshot, events, _of_earlier_runs(context, events))
    if not found and not traces_for(context):
        return does_not_apply(NO_TRACE)
    restated = tuple(_restated(context.snapshot, fault, finding) for fault, finding in found)
    judgement = judged(*(finding for _, finding in found), restated=restated)
    if isinstance(log, Missing) and judgement.outcome is Outcome.PASS:
        return not_readable("the kernel log", log)  # NVML reports only what came since the service started
    return judgement


def _of_earlier_runs(context: Context, log: Iterable[KernelEvent]) -> tuple[KernelEvent, ...]:
    """The stored events that the log lost at a boot, without those of another board or of long ago."""
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
    """Whether another board now has the slot of the GPU that the event was about."""
    if event.gpu_uuid is None:
        return False
    here = {device.id.bus_id: device.id.uuid for device in snapshot.devices}
    uuid = here.get(event.bus_id or "")
    return uuid is not None and not isinstance(uuid, Missing) and uuid != event.gpu_uuid


def judge_faults(
    snapshot: Snapshot, events: Iterable[KernelEvent], earlier: Iterable[KernelEvent]
) -> tuple[tuple[GpuFault, Finding], ...]:
    """Each fault with its finding, worst first, without those that are too old to matter."""
    faults = collect_faults(snapshot, events, earlier)
    judged_faults = (
        (fault, _judge_fault(snapshot, fault, find_bad_place(fault, faults))) for fault in faults
    )
    found = [(fault, finding) for fault, finding in judged_faults if finding is not None]
    order = (Outcome.FAIL, Outcome.WARN, Outcome.PASS)
    return tuple(sorted(found, key=lambda pair: order.index(pair[1].outcome)))


def _restated(snapshot: Snapshot, fault: GpuFault, finding: Finding) -> Restated:
    """The findings by which NVML states the same fault now, and what this one adds to them."""
    action = read_recovery(fault).action
    again = _describe_again(fault) if finding.code == XID_REPEATED.code and fault.lives > 1 else ""
    request = name_action(str(action)) if is_unfit(action) else ""
    stated_by, last = fault.last.stated_by, fault.last
    if has_link_error_beside(snapshot, last.device, last.root, last.xid):
        stated_by = (*stated_by, *STATED_BY_NEIGHBOURS)
    return Restated(finding, stated_by, cite_fault(snapshot, fault), again, request)


def _judge_fault(snapshot: Snapshot, fault: GpuFault, bad: BadPlace | None) -> Finding | None:
    recovery = read_recovery(fault)
    kind = _kind(snapshot, fault, recovery, bad)
    if kind is None:
        return None
    root, device = fault.last.root, fault.last.device
    subject = _subject(snapshot, device, root)
    restart = find_restart(fault)
    evidence = (*fault_evidence(fault, recovery), *((restart,) if restart else ()))
    remedy = _describe_place(bad) if bad else _remedy(fault, recovery, kind)
    entry = fault.last.xid
    # A FAIL that is the driver's own fault is no broken part: a key that could not be rotated (151).
    owner = Owner.SOFTWARE if kind is XID_HARDWARE and entry and entry.kind is XidKind.DRIVER else None
    found = kind.finding(subject, describe_fault(snapshot, fault), *evidence, remedy=remedy, owner=owner)
    # As grave as NVML's own word that the GPU is lost: nothing but a power cycle, or a hand, brings it back.
    grave = kind is XID_HARDWARE and entry is not None and entry.immediate in _BY_HAND
    return replace(found, severity=Severity.ISOLATE) if grave else found


def _kind(
    snapshot: Snapshot, fault: GpuFault, recovery: Recovery, bad: BadPlace | None
) -> FindingKind | None:
    """The kind of finding for a fault; None for one too old to matter."""
    burst = fault.last
    entry, outcome = burst.xid, outcome_of(burst.root)
    unfit = is_unfit(recovery.action) and _is_about(burst, recovery)
    if burst.device is None and _is_part(snapshot):
        recent = _is_recent(snapshot, burst, SETTLED_WINDOW)
        return XID_OTHER_GPU if recent and (unfit or outcome is Outcome.FAIL) else None
    if unfit:
        return XID_HARDWARE
    if outcome is Outcome.FAIL:
        return _fail_kind(snapshot, fault, recovery)
    if bad is not None and _is_recent(snapshot, burst, SETTLED_WINDOW):
        return XID_REPEATED
    if any(asks_for_recovery(event) for event in burst.events):
        # A step that leaves the GPU usable; or one that the driver asked for, and asks for no longer.
        kind = XID_WEAR if recovery.action not in (None, "none") else XID_SETTLED
        return kind if _is_recent(snapshot, burst, SETTLED_WINDOW) else None
    if entry is None or (entry.kind is XidKind.HARDWARE and outcome is not Outcome.PASS):
        kind = XID_UNKNOWN if entry is None else XID_SETTLED if _is_restarted(fault) else XID_WEAR
        lasts = entry is not None and entry.lasting
        return kind if lasts or _is_recent(snapshot, burst, SETTLED_WINDOW) else None
    if not _is_recent(snapshot, burst, APPLICATION_WINDOW):
        return None
    if outcome is Outcome.PASS:
        return XID_NOTE
    return XID_APPLICATION if entry.kind is XidKind.APPLICATION else XID_DRIVER


def _fail_kind(snapshot: Snapshot, fault: GpuFault, recovery: Recovery) -> FindingKind | None:
    if not _is_over(snapshot, fault, recovery):
        return XID_REPEATED if fault.lives > 1 else XID_HARDWARE
    if not _is_recent(snapshot, fault.last, SETTLED_WINDOW):
        return None
    return XID_REPEATED if fault.lives > 1 else XID_SETTLED


def _is_over(snapshot: Snapshot, fault: GpuFault, recovery: Recovery) -> bool:
    """Whether the fault has ended: by the driver's word, a restart of the GPU, or a day of work."""
    entry, device = fault.last.xid, fault.last.device
    if entry is not None and entry.lasting:
        return False
    if _is_restarted(fault):
        return True
    long_ago = not _is_recent(snapshot, fault.last, UNASKED_WINDOW)
    if recovery.action == "none":
        return fault.asked_for_recovery or long_ago
    works = device is not None and device.responding is True
    return recovery.action is None and works and long_ago


def _is_restarted(fault: GpuFault) -> bool:
    """Whether the GPU was restarted after the fault and works, and the damage is none that outlasts it."""
    entry, device = fault.last.xid, fault.last.device
    if device is None or device.responding is not True or (entry is not None and entry.lasting):
        return False
    return find_restart(fault) is not None


def _is_about(burst: GpuBurst, recovery: Recovery) -> bool:
    """Whether this burst, and no other on the same GPU, is why the driver asks for a recovery."""
    entry = burst.xid
    if entry is None or entry.kind is XidKind.HARDWARE or burst.root.xid_code == RECOVERY_XID:
        return True
    return any(event.recovery_action == recovery.action for event in burst.events)


def _is_part(snapshot: Snapshot) -> bool:
    """Whether an allocation gave this process its GPUs, and all of them are listed."""
    machine = snapshot.machine
    grant = granted(machine.allocation)
    given = None if grant is None else grant[1]
    if given is None and machine.container is not None and not isinstance(machine.device_nodes, Missing):
        given = sum(1 for node in machine.device_nodes if node.removeprefix("/dev/nvidia").isdecimal())
    listed = sum(1 for device in snapshot.devices if not isinstance(device.id.nvml_index, Missing))
    return given is not None and listed >= given


def _is_recent(snapshot: Snapshot, burst: GpuBurst, window: timedelta) -> bool:
    """Whether the burst's root is younger than `window`, or has no time."""
    at = burst.root.at
    return isinstance(at, Missing) or snapshot.taken_at - at <= window


def _subject(snapshot: Snapshot, device: Device | None, event: KernelEvent) -> DeviceSubject:
    if device is not None:
        return device_subject(snapshot, device)
    absent = Missing(MissingReason.SOURCE_ABSENT)
    return DeviceSubject(event.gpu_uuid or absent, event.bus_id or absent, absent, snapshot.host)


def _remedy(fault: GpuFault, recovery: Recovery, kind: FindingKind) -> str:
    advice = _remedy_of_code(fault, recovery, kind)
    root = fault.last.root
    decoded = None if root.unit is None or root.subcode is None else nvlink5_advice(root.unit, root.subcode)
    return f"{advice} {decoded}" if advice and decoded else advice


def _remedy_of_code(fault: GpuFault, recovery: Recovery, kind: FindingKind) -> str:
    entry, root = fault.last.xid, fault.last.root
    if kind in (XID_SETTLED, XID_UNKNOWN, XID_OTHER_GPU):
        return ""
    if is_unfit(recovery.action) and kind is not XID_REPEATED:
        return f"The driver asks for {name_action(str(recovery.action))}: drain the GPU first."
    if recovery.action not in (None, "none") and kind is XID_WEAR:
        return f"The driver asks for {name_action(str(recovery.action))}. Let running jobs end first."
    if entry is None:
        return ""
    if kind is XID_WEAR and root.severity == "nonfatal":
        return "No reset is needed: watch the link."
    if kind is XID_REPEATED:
        next_step = "contact_support" if entry.lasting else escalated(entry.immediate)
        step = REPLACE if next_step == "contact_support" else written_action(next_step)
        return f"{_describe_again(fault)} {step}"
    advice = written_action(entry.immediate)
    if kind is not XID_HARDWARE or not _is_reset_unseen(fault):
        return advice
    # Linked GPUs are reset together, and their switches with them.
    linked = entry.immediate == "reset_linked_gpus"
    return f"{advice} {how_to_report_reset(root, None if linked else root.bus_id)}"


def _is_reset_unseen(fault: GpuFault) -> bool:
    """Whether a reset may be invisible to gpudiag: the GPU works, and nothing shows whether it was reset."""
    burst = fault.last
    works = burst.device is not None and burst.device.responding is True
    logged = bool(burst.root.text) and burst.root.bus_id is not None
    return works and logged and not (burst.xid and burst.xid.lasting)


def _describe_place(bad: BadPlace) -> str:
    return (
        f"{bad.jobs} jobs met it at {bad.place} and nowhere else: it is the GPU,"
        " not the jobs. [hardware] Drain the GPU and [reset: reset it]; test it with `dcgmi diag -r 3`;"
        " if it comes back there, have it replaced."
    )


def _describe_again(fault: GpuFault) -> str:
    again = fault.lives - 1
    since = "" if isinstance(fault.first_at, Missing) else f" since {fault.first_at:%Y-%m-%d}"
    return f"It came back {'once' if again == 1 else f'{again} times'}{since}."
