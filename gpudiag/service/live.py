"""One tick as a document: each GPU's first-screen readings and health, and the sampler's state."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from gpudiag import __version__
from gpudiag.checks.gpu.availability import signs_of_use
from gpudiag.checks.gpu.state import count_states, findings_about
from gpudiag.model.device import Device, Snapshot, SourceState
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.service import Findings, LastGood, Live, LiveDevice, SamplerState, SamplerStatus
from gpudiag.reference.vocabulary import FAULT_REASONS
from gpudiag.sampler.picture import NvmlPicture
from gpudiag.sampler.tiers import FAST_SECONDS

MAX_FINDINGS = 8  # of a tick; all of them are at /api/v1/findings

_GOOD = ("pass", "warn")
_NO_TICK = Missing(MissingReason.NOT_ASKED, "no tick yet")
_NEVER = Missing(MissingReason.NOT_ASKED, "it has not answered since the service started")
_REMEMBERED = tuple(field.name for field in fields(LastGood) if field.name != "at")
_COPIED = tuple(field.name for field in fields(LiveDevice) if field.name in Device.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class SamplerFacts:
    """What the watch knows of its sampler besides the readings."""

    polls: bool
    paused: bool
    silent_seconds: float | None
    interval_seconds: float
    restarts: int
    stuck: int
    since: tuple[SamplerState, datetime] | None  # the state at the last tick, and since when
    cannot_start: str | None = None  # why there is no sampler to ask the driver


def build_live(
    snapshot: Snapshot,
    picture: NvmlPicture,
    facts: SamplerFacts,
    findings: Findings | None,
    last_good: Mapping[str, LastGood],
    sequence: int,
) -> Live:
    """The document of one tick; GPUs in the order of their NVML index."""
    known = () if findings is None else findings.findings
    devices = sorted(snapshot.devices, key=_place)
    sampler = _sampler_status(snapshot, picture, facts)
    age_seconds = picture.age_seconds()
    old = age_seconds is not None and age_seconds > sampler.stale_after_seconds
    return Live(
        sequence=sequence,
        at=datetime.now(UTC),
        host=snapshot.host,
        simulated=snapshot.simulated,
        version=__version__,
        driver_version=snapshot.driver_version,
        cuda_driver_version=snapshot.cuda_driver_version,
        verdict=_verdict(findings, old=old),
        headline=_headline(snapshot, known) if not old else _old_headline(sampler, age_seconds or 0.0),
        sampler=sampler,
        sources=snapshot.sources,
        devices=tuple(_live_device(device, known, last_good.get(key_of(device))) for device in devices),
        findings_version=0 if findings is None else findings.version,
        finding_count=len(known),
        findings=known[:MAX_FINDINGS],
    )


def _old_headline(sampler: SamplerStatus, age_seconds: float) -> str:
    """How old the numbers are, and the reason if that is intended."""
    why = f": {sampler.reason}" if sampler.state is SamplerState.PAUSED else ""
    return f"the numbers are {age_seconds:.0f} s old{why}"


def _verdict(findings: Findings | None, *, old: bool) -> str | None:
    """The checks' verdict; ERROR if that is good but the numbers are old."""
    if findings is None:
        return None
    return Outcome.ERROR.value if old and findings.verdict in _GOOD else findings.verdict


def key_of(device: Device) -> str:
    """The GPU's key: its bus id, which even a dead GPU has, else its UUID or index."""
    for part in (device.id.bus_id, device.id.uuid, device.id.nvml_index):
        if not isinstance(part, Missing):
            return str(part)
    return ""


def last_good_of(device: Device, at: datetime) -> LastGood | None:
    """The readings to show as the last good ones if the GPU falls silent; None if it gave none."""
    readings = {name: getattr(device, name) for name in _REMEMBERED}
    if all(isinstance(reading, Missing) for reading in readings.values()):
        return None  # listed, and not read yet
    return LastGood(at=at, **readings)


def throttle_reasons(device: Device) -> Reading[tuple[str, ...]]:
    """The faults that slow the GPU down; empty if none does."""
    reasons = device.clocks_event_reasons
    if isinstance(reasons, Missing):
        return reasons
    return tuple(reason for reason in reasons if reason in FAULT_REASONS)


def _live_device(device: Device, findings: tuple[Finding, ...], last_good: LastGood | None) -> LiveDevice:
    about = findings_about(device, findings)
    throttled = throttle_reasons(device)
    responds = device.responding is True
    return LiveDevice(
        health=about[0].outcome.value if about else "ok" if responds else "fail",
        finding_codes=tuple(dict.fromkeys(finding.code for finding in about)),
        last_good_at=_NEVER if last_good is None else last_good.at,
        throttled=throttled if isinstance(throttled, Missing) else bool(throttled),
        last_good=None if responds else last_good,
        signs_of_use=tuple(signs_of_use(device)) if responds else (),
        **{name: getattr(device, name) for name in _COPIED},
    )


def _place(device: Device) -> int:
    index = device.id.nvml_index
    return 1 << 16 if isinstance(index, Missing) else index


def _headline(snapshot: Snapshot, findings: tuple[Finding, ...]) -> str:
    """How many GPUs are in which state: `7 healthy, 1 lost`."""
    if not snapshot.devices:
        return "NVML is not asked" if snapshot.source("nvml").state is SourceState.NOT_ASKED else "no GPU"
    return count_states(snapshot, findings)


def _sampler_status(snapshot: Snapshot, picture: NvmlPicture, facts: SamplerFacts) -> SamplerStatus:
    late = picture.late()
    state, reason = _state(snapshot, picture, facts, late)
    wedged_call = next((call for call, _ in late.values()), None)
    if state is SamplerState.WEDGED and wedged_call is None and picture.starting is not None:
        wedged_call = picture.starting[0]
    now = datetime.now(UTC)
    return SamplerStatus(
        state=state,
        since=facts.since[1] if facts.since is not None and facts.since[0] is state else now,
        interval_seconds=facts.interval_seconds,
        restarts=facts.restarts,
        stale_after_seconds=facts.interval_seconds + 4.0,
        reason=reason,
        last_good_at=_NO_TICK if picture.tick_at is None else datetime.fromtimestamp(picture.tick_at, UTC),
        wedged_call=wedged_call,
        tick_seconds=_NO_TICK if picture.tick_seconds is None else picture.tick_seconds,
    )


def _state(
    snapshot: Snapshot, picture: NvmlPicture, facts: SamplerFacts, late: Mapping[int, tuple[str, float]]
) -> tuple[SamplerState, str | None]:
    if not facts.polls:
        return SamplerState.OFF, "NVML is not asked (--no-poll)"
    if facts.paused:
        return SamplerState.PAUSED, "a bandwidth test runs and must not be disturbed"
    if late and not picture.wedged():
        return SamplerState.STARTING, f"the driver is attaching GPU {', '.join(map(str, late))}"
    if late:
        return SamplerState.WEDGED, _wedged_reason(picture, late, facts)
    if facts.cannot_start is not None:
        return SamplerState.FAILED, facts.cannot_start
    if facts.silent_seconds is not None:
        return SamplerState.WEDGED, f"the sampler has not reported for {facts.silent_seconds:.0f} s"
    if picture.failure is not None:
        return SamplerState.FAILED, snapshot.source("nvml").reason
    if picture.count is None:
        return SamplerState.STARTING, None
    if picture.count == 0:
        return SamplerState.NO_GPU, snapshot.source("nvml").reason
    if snapshot.source("nvml").state is SourceState.TIMED_OUT:
        return SamplerState.WEDGED, snapshot.source("nvml").reason
    return (SamplerState.SLOW if facts.interval_seconds > FAST_SECONDS else SamplerState.OK), None


def _wedged_reason(picture: NvmlPicture, late: Mapping[int, tuple[str, float]], facts: SamplerFacts) -> str:
    call, seconds = next(iter(late.values()))
    who = "NVML" if picture.starting is not None else f"GPU {', '.join(map(str, late))}"
    stuck = ""
    if facts.stuck:
        stuck = f"; {facts.stuck} earlier sampler processes are stuck in the driver"
    return f"{who}: {call} has not come back for {seconds:.0f} s{stuck}"
