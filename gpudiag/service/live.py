"""One tick as a document, and what changed from one snapshot of the machine to the next."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from types import MappingProxyType

from gpudiag import __version__
from gpudiag.checks.gpu.availability import reasons_against, signs_of_use
from gpudiag.checks.gpu.state import count_states, findings_about
from gpudiag.compat import UTC
from gpudiag.model.device import Device, Snapshot, SourceState
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.service import (
    Findings,
    LastGood,
    Live,
    LiveDevice,
    SamplerState,
    SamplerStatus,
    TimelineEntry,
    TimelineKind,
)
from gpudiag.reference.vocabulary import FAULT_REASONS
from gpudiag.reference.xid import xids
from gpudiag.sampler.picture import NvmlPicture

# --- one tick

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
    last_seen: Mapping[str, datetime] = MappingProxyType({}),
) -> Live:
    """The document of one tick; GPUs in the order of their NVML index.

    `last_seen` is by key, of those never read here.
    """
    known = () if findings is None else findings.findings
    devices = sorted(snapshot.devices, key=_place)
    driver_answers = not isinstance(snapshot.driver_version, Missing)
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
        devices=tuple(
            _live_device(
                snapshot,
                device,
                known,
                last_good.get(key_of(device)),
                last_seen.get(key_of(device)),
                driver_answers=driver_answers,
            )
            for device in devices
        ),
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
    """The GPU's key: its UUID, as another may come into its slot, else its bus id or index."""
    for part in (device.id.uuid, device.id.bus_id, device.id.nvml_index):
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


def _live_device(
    snapshot: Snapshot,
    device: Device,
    findings: tuple[Finding, ...],
    last_good: LastGood | None,
    last_seen: datetime | None,
    *,
    driver_answers: bool,
) -> LiveDevice:
    about = findings_about(device, findings)
    throttled = throttle_reasons(device)
    responds = device.responding is True
    return LiveDevice(
        # Without a driver that answers, nothing is known of a GPU: it may be well.
        health=about[0].outcome.value
        if about
        else "ok"
        if responds or device.is_asleep
        else "fail"
        if driver_answers
        else "error",
        finding_codes=tuple(dict.fromkeys(finding.code for finding in about)),
        last_good_at=last_good.at
        if last_good is not None
        else _NEVER
        if last_seen is None or responds
        else last_seen,
        throttled=throttled if isinstance(throttled, Missing) else bool(throttled),
        last_good=None if responds else last_good,
        signs_of_use=tuple(signs_of_use(device)) if responds else (),
        not_free_because=reasons_against(snapshot, device, findings),
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
        last_good_at=_NO_TICK
        if picture.answered_at is None
        else datetime.fromtimestamp(picture.answered_at, UTC),
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
    return (SamplerState.OK if picture.slow is None else SamplerState.SLOW), picture.slow


def _wedged_reason(picture: NvmlPicture, late: Mapping[int, tuple[str, float]], facts: SamplerFacts) -> str:
    call, seconds = next(iter(late.values()))
    who = "NVML" if picture.starting is not None else f"GPU {', '.join(map(str, late))}"
    stuck = ""
    if facts.stuck:
        stuck = f"; {facts.stuck} earlier sampler processes are stuck in the driver"
    return f"{who}: {call} has not come back for {seconds:.0f} s{stuck}"


# --- what changed since the last

_WORDS = {
    MissingReason.DEVICE_LOST: (TimelineKind.GPU_LOST, "is lost"),
    MissingReason.RESET_REQUIRED: (TimelineKind.GPU_LOST, "has to be reset"),
    MissingReason.SOURCE_ABSENT: (TimelineKind.GPU_LOST, "is missing"),
}
_REPEAT_SECONDS = 2.0  # a new event set may receive again what an earlier one received


class Changes:
    """Compares snapshots and reports what changed; numbers entries from 1."""

    def __init__(self, publish: Callable[[TimelineEntry], None]) -> None:
        """Pass each entry to `publish`."""
        self.number = 0
        self._publish = publish
        self._driver: str | None = None
        self._sampler: SamplerState | None = None
        self._restarts = 0
        self._well: set[str] = set()  # GPUs that answered when the driver last did
        self._away: set[str] = set()  # GPUs that are known to give no answer
        self._throttled: dict[str, tuple[str, ...]] = {}
        self._indices: dict[str, int] = {}  # that each GPU had last
        self._slots: dict[str, str] = {}  # the UUID of the GPU that answered last in each
        self._xids: Counter[tuple[str, int]] = Counter()  # received so far
        self._repeated: Counter[tuple[str, int]] = Counter()  # from the present child
        self._generation = 0
        self._generation_at = 0.0

    def compare(self, after: Snapshot) -> None:
        """Report what differs from earlier snapshots; `after` has a row for each missing GPU."""
        self._compare_driver(after)
        nvml_answers = not isinstance(after.driver_version, Missing)
        for device in after.devices:
            if not isinstance(device.id.nvml_index, Missing):
                self._indices[key_of(device)] = device.id.nvml_index
            self._compare_slot(device)
            self._compare_answers(device, nvml_answers=nvml_answers)
            self._compare_throttling(device)

    def note_xid(
        self,
        snapshot: Snapshot | None,
        index: int,
        code: int,
        at: float,
        generation: int,
        uuid: str | None = None,
    ) -> None:
        """Report an Xid from NVML's events once, even if a later child receives it again.

        `index` is the GPU's place when the event came: by its UUID it is found also where it has moved since.
        """
        device = _find(snapshot, index, uuid)
        key = (str(index) if device is None else key_of(device), code)
        if generation != self._generation:
            self._generation, self._generation_at = generation, at
            self._repeated.clear()
        if generation and at - self._generation_at < _REPEAT_SECONDS:
            self._repeated[key] += 1
            if self._repeated[key] <= self._xids[key]:
                return
        self._xids[key] += 1
        entry = xids().get(code)
        meaning = "not in the catalogue" if entry is None else entry.meaning.rstrip(".")
        severity = "warn" if entry is None else entry.outcome.value
        self._note(
            TimelineKind.XID, f"{self._who(device, index)}: Xid {code}, {meaning}", severity, device, at, code
        )

    def note_sampler(self, status: SamplerStatus) -> None:
        """Report when the sampler is wedged, replaced or well again."""
        before, self._sampler = self._sampler, status.state
        wedged = SamplerState.WEDGED
        if status.state is wedged and before is not wedged:
            self._note(TimelineKind.SAMPLER, f"the sampler is stuck: {status.reason}", "fail")
        elif before is wedged and status.state is not wedged:
            self._note(TimelineKind.SAMPLER, f"the sampler works again: {status.state.value}", "pass")
        elif status.restarts > self._restarts and status.state in (SamplerState.OK, SamplerState.SLOW):
            self._note(TimelineKind.SAMPLER, "the sampler was restarted", "pass")
        self._restarts = status.restarts

    def note_run(self, message: str, severity: str, at: float) -> None:
        """Report the start or end of a run."""
        self._note(TimelineKind.RUN, message, severity, at=at)

    def note_job(self, message: str, severity: str, at: float) -> None:
        """Report that a job stands still, or no longer does."""
        self._note(TimelineKind.JOB, message, severity, at=at)

    def _compare_driver(self, after: Snapshot) -> None:
        status = after.source("nvml")
        if status.state in (SourceState.TIMED_OUT, SourceState.NOT_ASKED):
            return
        version = after.driver_version
        now = status.state.value if isinstance(version, Missing) else version
        before, self._driver = self._driver, now
        if before is None or before == now:
            return
        if isinstance(version, Missing):
            self._note(TimelineKind.DRIVER, f"NVML no longer answers: {status.reason}", "fail")
        else:
            self._note(TimelineKind.DRIVER, f"NVML answers: driver {version} (before: {before})", "pass")

    def _compare_slot(self, after: Device) -> None:
        """Report a GPU that has taken another one's place on the bus, as a board that was replaced."""
        uuid, bus_id = after.id.uuid, after.id.bus_id
        if isinstance(uuid, Missing) or isinstance(bus_id, Missing) or after.responding is not True:
            return
        before = self._slots.get(bus_id)
        self._slots[bus_id] = uuid
        if before is not None and before != uuid:
            self._well.discard(before)
            self._away.discard(before)
            words = f"is another GPU now: {uuid} is in the place of {before}"
            self._note_device(after, TimelineKind.GPU_BACK, words, "warn")

    def _compare_answers(self, after: Device, *, nvml_answers: bool) -> None:
        now, key = after.responding, key_of(after)
        if after.is_asleep:
            return  # it was never asked
        if not isinstance(now, Missing):
            self._well.add(key)
            if key in self._away:
                self._away.discard(key)
                self._note_device(after, TimelineKind.GPU_BACK, "answers again", "pass")
        elif nvml_answers and key not in self._away:  # else it is the driver that does not answer
            self._away.add(key)
            if key in self._well:  # the findings cover what was never well
                self._well.discard(key)
                kind, words = _WORDS.get(now.reason, (TimelineKind.GPU_SILENT, "does not answer"))
                self._note_device(after, kind, f"{words}: {now.detail}" if now.detail else words, "fail")

    def _compare_throttling(self, device: Device) -> None:
        reasons: Reading[tuple[str, ...]] = throttle_reasons(device)
        if isinstance(reasons, Missing):
            return
        key = key_of(device)
        before = self._throttled.get(key, ())
        self._throttled[key] = reasons
        if reasons and not before:
            words = f"is slowed down: {', '.join(reasons)}"
            self._note_device(device, TimelineKind.THROTTLE_START, words, "warn", reasons)
        elif before and not reasons:
            self._note_device(device, TimelineKind.THROTTLE_END, "is no longer slowed down", "pass", before)

    def _note_device(
        self, device: Device, kind: TimelineKind, words: str, severity: str, reasons: tuple[str, ...] = ()
    ) -> None:
        self._note(kind, f"{self._who(device, None)} {words}", severity, device, reasons=reasons)

    def _who(self, device: Device | None, index: int | None) -> str:
        if device is None:
            return f"GPU {index}"
        if not isinstance(device.id.nvml_index, Missing):
            return f"GPU {device.id.nvml_index}"
        was = self._indices.get(key_of(device))
        place = device.id.bus_id if not isinstance(device.id.bus_id, Missing) else key_of(device)
        return f"the GPU at {place}" if was is None else f"GPU {was} ({place})"

    def _note(
        self,
        kind: TimelineKind,
        message: str,
        severity: str,
        device: Device | None = None,
        at: float | None = None,
        xid_code: int | None = None,
        reasons: tuple[str, ...] = (),
    ) -> None:
        self.number += 1
        moment = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
        uuid = None if device is None or isinstance(device.id.uuid, Missing) else device.id.uuid
        index = None if device is None else self._indices.get(key_of(device))
        self._publish(
            TimelineEntry(self.number, moment, kind, message, severity, uuid, index, xid_code, reasons)
        )


def _find(snapshot: Snapshot | None, index: int, uuid: str | None) -> Device | None:
    devices = () if snapshot is None else snapshot.devices
    if uuid is not None:
        return next((device for device in devices if device.id.uuid == uuid), None)
    return next((device for device in devices if device.id.nvml_index == index), None)
