"""One tick as a document, and what changed from one snapshot of the machine to the next."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime

from gpudiag import __version__
from gpudiag.checks.gpu.availability import signs_of_use
from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.checks.gpu.state import count_states, findings_about
from gpudiag.compat import UTC
from gpudiag.model.device import Device, Snapshot, SourceState
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.history import KnownGpus
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
from gpudiag.sampler.tiers import FAST_SECONDS

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


# --- what changed since the last

_WORDS = {
    MissingReason.DEVICE_LOST: (TimelineKind.GPU_LOST, "is lost"),
    MissingReason.RESET_REQUIRED: (TimelineKind.GPU_LOST, "has to be reset"),
    MissingReason.SOURCE_ABSENT: (TimelineKind.GPU_LOST, "is missing"),
}
_RETOLD_SECONDS = 2.0  # a new event set may be told again what an earlier one was told

# Readings that identify a GPU, kept while it does not answer.
_KEPT = ("id", "name", "serial", "vbios_version", "board_part_number", "architecture", "compute_capability")
MAX_GPUS = 64  # instances of a virtual machine that come and go


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
        self._xids: Counter[tuple[str, int]] = Counter()  # told so far
        self._retold: Counter[tuple[str, int]] = Counter()  # by the child that is heard now
        self._generation = 0
        self._generation_at = 0.0

    def compare(self, after: Snapshot) -> None:
        """Report what differs from earlier snapshots; `after` has a row for each missing GPU."""
        self._compare_driver(after)
        nvml_answers = not isinstance(after.driver_version, Missing)
        for device in after.devices:
            self._compare_answers(device, nvml_answers=nvml_answers)
            self._compare_throttling(device)

    def note_xid(self, snapshot: Snapshot | None, index: int, code: int, at: float, generation: int) -> None:
        """Report an Xid from NVML's events once, even if a later child receives it again."""
        device = _by_index(snapshot, index)
        key = (str(index) if device is None else key_of(device), code)
        if generation != self._generation:
            self._generation, self._generation_at = generation, at
            self._retold.clear()
        if generation and at - self._generation_at < _RETOLD_SECONDS:
            self._retold[key] += 1
            if self._retold[key] <= self._xids[key]:
                return
        self._xids[key] += 1
        entry = xids().get(code)
        meaning = "not in the catalogue" if entry is None else entry.meaning.rstrip(".")
        severity = "warn" if entry is None else entry.outcome.value
        self._note(
            TimelineKind.XID, f"{_who(device, index)}: Xid {code}, {meaning}", severity, device, at, code
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

    def _compare_answers(self, after: Device, *, nvml_answers: bool) -> None:
        now, key = after.responding, key_of(after)
        if not isinstance(now, Missing):
            self._well.add(key)
            if key in self._away:
                self._away.discard(key)
                self._note_device(after, TimelineKind.GPU_BACK, "answers again", "pass")
        elif nvml_answers and key not in self._away:  # else it is the driver that does not answer
            self._away.add(key)
            if key in self._well:  # what was never well the findings say
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
        self._note(kind, f"{_who(device, None)} {words}", severity, device, reasons=reasons)

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
        index = None if device is None or isinstance(device.id.nvml_index, Missing) else device.id.nvml_index
        self._publish(
            TimelineEntry(self.number, moment, kind, message, severity, uuid, index, xid_code, reasons)
        )


def _by_index(snapshot: Snapshot | None, index: int) -> Device | None:
    devices = () if snapshot is None else snapshot.devices
    return next((device for device in devices if device.id.nvml_index == index), None)


def _who(device: Device | None, index: int | None) -> str:
    if device is None:
        return f"GPU {index}"
    if isinstance(device.id.nvml_index, Missing):
        return f"the GPU at {key_of(device)}"
    return f"GPU {device.id.nvml_index}"


_REST = tuple(field.name for field in fields(Device) if field.name not in _KEPT)


class SeenGpus:
    """Every GPU that has answered since the service started, by its key."""

    def __init__(self) -> None:
        """Start without any GPU."""
        self._devices: dict[str, Device] = {}
        self._known: KnownGpus | None = None

    def note(self, snapshot: Snapshot) -> None:
        """Remember the GPUs that answer now."""
        for device in snapshot.devices:
            if device.responding is True:
                key = _identity(device)
                self._devices.pop(key, None)  # the newest last
                self._devices[key] = device
        while len(self._devices) > MAX_GPUS:
            del self._devices[next(iter(self._devices))]
        if snapshot.devices:
            now = known_gpus_of(snapshot)
            before = () if self._known is None else self._known.gpus
            here = {gpu.uuid for gpu in now.gpus}
            seen = (*(gpu for gpu in before if gpu.uuid not in here), *now.gpus)
            self._known = replace(now, gpus=seen[-MAX_GPUS:])

    def recognise(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, with the earlier identity of each GPU that now shows only its place on the bus.

        Without its driver a GPU has neither UUID nor index; metrics and page still identify it by them.
        """
        by_place = {device.id.bus_id: device for device in self._devices.values()}
        return replace(snapshot, devices=tuple(_recognised(device, by_place) for device in snapshot.devices))

    def known(self, noted: Reading[KnownGpus]) -> Reading[KnownGpus]:
        """The GPUs that the last good run noted, and those seen since."""
        if self._known is None:
            return noted
        if isinstance(noted, Missing):
            return self._known
        here = {gpu.uuid for gpu in self._known.gpus}
        return replace(
            self._known, gpus=(*(gpu for gpu in noted.gpus if gpu.uuid not in here), *self._known.gpus)
        )

    def rows_of_missing(self, snapshot: Snapshot) -> tuple[Device, ...]:
        """A row for each GPU that was seen but the driver no longer lists: its identity, and the reason."""
        here = {key for device in snapshot.devices for key in _names(device)}
        indices = {device.id.nvml_index for device in snapshot.devices}
        gone = [device for device in self._devices.values() if not here & set(_names(device))]
        why = _why(snapshot)
        return tuple(_row(device, why, indices) for device in sorted(gone, key=key_of))


def _recognised(device: Device, by_place: Mapping[Reading[str], Device]) -> Device:
    seen = by_place.get(device.id.bus_id)
    if seen is None or not isinstance(device.id.uuid, Missing):
        return device
    known = {name: getattr(seen, name) for name in _KEPT if isinstance(getattr(device, name), Missing)}
    identity = replace(seen.id, cuda_ordinal=device.id.cuda_ordinal)
    return replace(device, **{**known, "id": identity})


def _why(snapshot: Snapshot) -> Missing:
    """Why a GPU that was seen gives no readings now."""
    if isinstance(snapshot.driver_version, Missing):
        return Missing(
            snapshot.driver_version.reason, snapshot.source("nvml").reason or "NVML does not answer"
        )
    return Missing(MissingReason.SOURCE_ABSENT, "the driver no longer lists it")


def _row(device: Device, why: Missing, indices: Iterable[Reading[int]]) -> Device:
    identity = replace(device.id, cuda_ordinal=why)
    if identity.nvml_index in indices:  # the others have moved up
        identity = replace(identity, nvml_index=why)
    return replace(device, id=identity, **dict.fromkeys(_REST, why))


def _identity(device: Device) -> str:
    return str(device.id.uuid) if not isinstance(device.id.uuid, Missing) else key_of(device)


def _names(device: Device) -> tuple[str, ...]:
    """The names by which a row may be known; a lost GPU may have only its place on the bus."""
    parts = (device.id.uuid, device.id.bus_id)
    return tuple(str(part) for part in parts if not isinstance(part, Missing))
