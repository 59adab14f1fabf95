"""Check of what the driver wrote into the kernel log about NVSwitches (SXid).

An error that stopped the fabric is settled when the driver was loaded again since, or a day ago, and every
GPU works and has its links: history, not a FAIL. NVML has no word on a switch itself.
"""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from gpudiag.checks.gpu.xid import SETTLED_WINDOW, UNASKED_WINDOW
from gpudiag.checks.gpu.xid_faults import how_to_report_reset, split_bursts
from gpudiag.checks.needs import NO_TRACE
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged
from gpudiag.checks.subjects import short_bus_id
from gpudiag.checks.traces import traces_for
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import Evidence, LinkSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing, value_or
from gpudiag.reference.vocabulary import UNFIT_ACTIONS
from gpudiag.reference.xid import SXid, SXidClass, sxids

_BASIS = Basis(
    reads="NVSwitch lines of the kernel log of this boot, and NVLink Xids (74, 144 to 150, 155) of the"
    " GPUs in the same burst; a later load of the driver; whether every GPU answers and has its NVLinks.",
    limit=(
        "Fabric Manager User Guide, appendix D; a fault is a FAIL for a day"
        " and a WARN for a week, as an Xid is"
    ),
    look_also=("xid 74", "journalctl -u nvidia-fabricmanager", "/var/log/fabricmanager.log"),
)
_sxid_kind = partial(
    FindingKind, outcome=Outcome.WARN, category=Category.HW_NVSWITCH, owner=Owner.HARDWARE, basis=_BASIS
)
SXID_FATAL = _sxid_kind(
    code="sxid.fatal",
    outcome=Outcome.FAIL,
    severity=Severity.RESET,
    meaning="An NVSwitch reported an error that stops the fabric, or that a GPU also saw as an NVLink error.",
    remedy="Drain the machine; [reset: reset all GPUs and NVSwitches together, or restart it].",
    stated=True,
)
SXID_SETTLED = _sxid_kind(
    code="sxid.settled",
    severity=Severity.MONITOR,
    meaning=(
        "An NVSwitch reported an error that stops the fabric within the last week;"
        " since then every GPU works and has its NVLinks."
    ),
    remedy="No action now; if it comes back, have the switch examined.",
)
SXID_ERROR = _sxid_kind(
    code="sxid.error",
    severity=Severity.MONITOR,
    meaning="An NVSwitch reported an error, and no GPU reports a fault of its NVLinks.",
    remedy="[driver] Look at the fabric manager's log.",
)
SXID_UNKNOWN = _sxid_kind(
    code="sxid.unknown",
    severity=Severity.TRIAGE,
    meaning="An NVSwitch reported an SXid that gpudiag's catalogue does not have.",
    remedy="Look it up in the Fabric Manager User Guide, appendix D, and update gpudiag.",
)
SXID_NOTE = _sxid_kind(
    code="sxid.note",
    outcome=Outcome.PASS,
    severity=Severity.NONE,
    meaning="An NVSwitch corrected an error, or reported an event that is no error.",
    remedy="No action is needed.",
)

# A GPU's own word that an NVLink failed: Xid 74 up to NVLink 4, 144 to 150 and 155 from NVLink 5 on.
_NVLINK_XIDS = frozenset({74, *range(144, 151), 155})


@check(
    "sxid.kernel_log",
    title="the kernel log reports no NVSwitch fault (SXid)",
    needs=("kernel_log",),
    reports=(SXID_FATAL, SXID_SETTLED, SXID_ERROR, SXID_UNKNOWN, SXID_NOTE),
    readings=("kernel_log", "recovery_action", "nvlinks"),
)
def sxid_kernel_log(context: Context) -> Judgement:
    """A finding for each NVSwitch link and code among the SXids of this boot."""
    log = context.snapshot.kernel_log
    assert not isinstance(log, Missing)  # noqa: S101 - the need saw to it
    findings = judge_sxids(context.snapshot, log)
    if not findings and not traces_for(context):
        return does_not_apply(NO_TRACE)
    return judged(*findings)


def judge_sxids(snapshot: Snapshot, events: Iterable[KernelEvent]) -> tuple[Finding, ...]:
    """Findings about the NVSwitch errors among `events`, worst first, once per switch, link and code."""
    order = (Outcome.FAIL, Outcome.WARN, Outcome.PASS)
    found: dict[tuple[str | None, int | None, int | None], Finding] = {}
    for burst in split_bursts(events):
        seen_by_gpu = any(event.xid_code in _NVLINK_XIDS for event in burst)
        for event in _first_lines(burst):
            key = (event.unit, event.link, event.sxid_code)
            finding = _finding(snapshot, event, seen_by_gpu)
            if finding is None:
                continue
            if key not in found or order.index(finding.outcome) <= order.index(found[key].outcome):
                found[key] = finding
    return tuple(sorted(found.values(), key=lambda finding: order.index(finding.outcome)))


def _first_lines(burst: tuple[KernelEvent, ...]) -> tuple[KernelEvent, ...]:
    """The SXids of a burst without their second and third lines ("Severity ...", "Data {...").

    Where the first line is lost, another takes its place.
    """
    sxids_of_burst = [event for event in burst if event.kind is KernelEventKind.SXID]
    graded = {(event.unit, event.sxid_code) for event in sxids_of_burst if event.severity is not None}
    return tuple(
        event
        for event in sxids_of_burst
        if event.severity is not None or (event.unit, event.sxid_code) not in graded
    )


def _finding(snapshot: Snapshot, event: KernelEvent, seen_by_gpu: bool) -> Finding | None:
    """The finding about one SXid; None for one that is too old to matter."""
    code = event.sxid_code
    entry = None if code is None else sxids().get(code)
    kind = _kind(entry, event, seen_by_gpu)
    if kind is SXID_FATAL and _is_over(snapshot, event):
        kind = SXID_SETTLED
    if kind is not SXID_FATAL and not _is_recent(snapshot, event, SETTLED_WINDOW):
        return None
    switch = event.unit or "an NVSwitch"
    where = switch if event.link is None else f"{switch} link {event.link}"
    meaning = entry.meaning if entry else "not in gpudiag's catalogue"
    address = f" ({short_bus_id(event.bus_id)})" if event.bus_id else ""
    facts = [Evidence("line", event.text, source="kernel log")]
    if code is not None:
        facts.append(Evidence("sxid", code, source="kernel log"))
    if not isinstance(event.at, Missing):
        facts.append(Evidence("at", event.at.isoformat(timespec="seconds"), source="kernel log"))
    if seen_by_gpu:
        facts.append(Evidence("nvlink_error_on_a_gpu", True, source="kernel log"))
    if event.restarted_by is not None:
        facts.append(Evidence("restarted_by", event.restarted_by, source="kernel log"))
    remedy = entry.written_remedy if entry and kind is not SXID_SETTLED else ""
    if kind is SXID_FATAL and _works(snapshot):
        remedy = f"{remedy or SXID_FATAL.written_remedy} {how_to_report_reset(event, None)}"
    return kind.finding(
        LinkSubject((switch, f"link {event.link}" if event.link is not None else "all links"), snapshot.host),
        f"{where}{address}: SXid {code}: {meaning}",
        *facts,
        remedy=remedy,
    )


def _is_over(snapshot: Snapshot, event: KernelEvent) -> bool:
    """Whether the switches were restarted or a day has passed since, and the fabric works."""
    restarted = event.restarted_by is not None or not _is_recent(snapshot, event, UNASKED_WINDOW)
    return restarted and _works(snapshot)


def _works(snapshot: Snapshot) -> bool:
    """Whether every GPU answers, asks for no recovery and has no link down."""
    return bool(snapshot.devices) and all(
        device.responding is True
        and device.recovery_action not in UNFIT_ACTIONS
        and not any(link.active is False for link in value_or(device.nvlinks, ()))
        for device in snapshot.devices
    )


def _is_recent(snapshot: Snapshot, event: KernelEvent, window: timedelta) -> bool:
    """Whether the event is younger than `window`, or has no time."""
    return isinstance(event.last_at, Missing) or snapshot.taken_at - event.last_at <= window


def _kind(entry: SXid | None, event: KernelEvent, seen_by_gpu: bool) -> FindingKind:
    if entry is None:
        return SXID_FATAL if event.severity == "fatal" and seen_by_gpu else SXID_UNKNOWN
    if entry.sxid_class is SXidClass.ALWAYS_FATAL:
        return SXID_FATAL
    if entry.sxid_class is SXidClass.FATAL:
        return SXID_FATAL if seen_by_gpu else SXID_ERROR
    harmless = entry.sxid_class is SXidClass.NOTE and event.severity != "fatal"
    return SXID_NOTE if harmless else SXID_ERROR
