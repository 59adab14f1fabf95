"""One word for a GPU's state: the same in a listing, in the bare command and in the service."""

from collections import Counter
from collections.abc import Iterable

from gpudiag.compat import StrEnum
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Finding, Outcome, worst
from gpudiag.model.reading import Missing, MissingReason, Reading


class GpuState(StrEnum):
    """How a GPU is, in the order in which a sentence counts them."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"  # a warning
    UNCLEAR = "unclear"  # a check could not look
    FAULTY = "faulty"
    LOST = "lost"
    NEEDS_RESET = "to reset"
    HUNG = "hung"
    ASLEEP = "asleep"  # the kernel has suspended it, and it was not woken
    STARTING = "starting"  # the driver is attaching it
    UNREAD = "unread"
    MISSING = "missing"


_OF_OUTCOMES: dict[str, GpuState] = {
    Outcome.WARN: GpuState.SUSPECT,
    Outcome.ERROR: GpuState.UNCLEAR,
    Outcome.FAIL: GpuState.FAULTY,
}
_OF_REASONS = {
    MissingReason.SOURCE_ABSENT: GpuState.MISSING,
    MissingReason.DEVICE_LOST: GpuState.LOST,
    MissingReason.RESET_REQUIRED: GpuState.NEEDS_RESET,
    MissingReason.TIMED_OUT: GpuState.HUNG,
    MissingReason.ATTACHING: GpuState.STARTING,
    MissingReason.NOT_ASKED: GpuState.ASLEEP,
}


def judge_state(snapshot: Snapshot, device: Device, findings: Iterable[Finding]) -> GpuState:
    """The state of a GPU of the snapshot: by how it answers, then by the worst finding about it."""
    about = findings_about(device, findings)
    health = worst(tuple(finding.outcome for finding in about)) if about else Outcome.PASS
    answers = not isinstance(snapshot.driver_version, Missing)
    return state_of_health(device.responding, health.value, driver_answers=answers)


def state_of_health(responding: Reading[bool], health: str, *, driver_answers: bool) -> GpuState:
    """The state of a GPU that responds so; `health` is the outcome of the worst finding about it."""
    if isinstance(responding, Missing):
        # Without a driver that answers, nothing is known of any GPU: it may be healthy.
        return _OF_REASONS.get(responding.reason, GpuState.UNREAD) if driver_answers else GpuState.UNREAD
    return _OF_OUTCOMES.get(health, GpuState.HEALTHY)


def count_states(snapshot: Snapshot, findings: Iterable[Finding]) -> str:
    """How many GPUs are in which state: `7 healthy, 1 lost`; `1 of 8 missing` if some should be there."""
    reported = tuple(findings)
    counts = Counter(judge_state(snapshot, device, reported) for device in snapshot.devices)
    of_all = f" of {len(snapshot.devices)}"
    return ", ".join(
        f"{counts[state]}{of_all if state is GpuState.MISSING else ''} {state}"
        for state in GpuState
        if counts[state]
    )


def findings_about(device: Device, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings whose subject is this GPU, in the order given; observations without a fault left out."""
    return tuple(
        finding
        for finding in findings
        if isinstance(finding.subject, DeviceSubject)
        and finding.outcome is not Outcome.PASS
        and _is_about(finding.subject, device)
    )


def _is_about(subject: DeviceSubject, device: Device) -> bool:
    """Whether subject and GPU agree in the first identity that both have."""
    pairs = (
        (subject.uuid, device.id.uuid),
        (subject.bus_id, device.id.bus_id),
        (subject.nvml_index, device.id.nvml_index),
    )
    for theirs, ours in pairs:
        if not isinstance(theirs, Missing) and not isinstance(ours, Missing):
            return theirs == ours
    return False
