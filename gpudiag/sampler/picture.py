"""What the sampler's children have said about the GPUs so far, merged into one answer of NVML.

A GPU that does not answer keeps its identity and loses its readings: they are missing for that reason,
and are never shown as current. A child that took another's place starts from what is known.
"""

from collections.abc import Mapping
from dataclasses import replace
from time import CLOCK_BOOTTIME, clock_gettime, monotonic
from typing import Any

from gpudiag.model.device import Device, SourceState
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.attaching import HANDLE_CALL, SECONDS_PER_GPU
from gpudiag.probe.nouns import reading_of
from gpudiag.probe.nvml.answer import NvmlAnswer, nvml_answer_of

DEADLINE_SECONDS = 2.0  # for one GPU; DESIGN: the sampler's

# Who a GPU is: all that is kept of one that does not answer.
_IDENTITY = (
    "uuid", "bus_id", "name", "serial", "vbios_version", "board_part_number", "architecture",
    "compute_capability",
)  # fmt: skip
_NOTES = ("missing", "missing_detail", "failed_calls")

Sheet = dict[str, Any]


class NvmlPicture:
    """NVML's answer as far as it is known; `take` messages of `gpudiag.sampler.child`."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._forget()

    def _forget(self) -> None:
        self.count: int | None = None
        self.failure: Sheet | None = None
        self.starting: tuple[str, float] | None = None  # the call, and since when
        self.tick_at: float | None = None  # Unix time of the last tick that was taken
        self.tick_seconds: float | None = None
        self._ticked_at: float | None = None  # since the machine was started, sleep included
        self._counted_at = 0.0  # when a child said how many GPUs there are (monotonic)
        self._library: Sheet = {}
        self._full: dict[int, Sheet] = {}
        self._fast: dict[int, Sheet] = {}
        self._processes: dict[int, dict[str, Sheet]] = {}
        self._peers: dict[int, list[Sheet]] = {}
        self._late: dict[int, tuple[str, float]] = {}  # the call, and since when (monotonic)

    def take(self, message: Mapping[str, Any], now: float | None = None) -> bool:
        """Take one message in; True where more has changed than the fast readings."""
        now = monotonic() if now is None else now
        return bool(getattr(self, f"_take_{message['kind']}")(message, now))

    def late(self, now: float | None = None) -> dict[int, tuple[str, float]]:
        """The GPUs that have been silent beyond the deadline: the call, and for how many seconds."""
        now = monotonic() if now is None else now
        if self.starting is not None and now - self.starting[1] >= DEADLINE_SECONDS:
            call, since = self.starting
            return {index: (call, now - since) for index in range(self.count or 0)}
        return {
            index: (call, now - since)
            for index, (call, since) in self._late.items()
            if now - since >= DEADLINE_SECONDS
        }

    def _is_attached(self, call: str, seconds: float) -> bool:
        """Whether a GPU that is late may just be being attached by the driver, one after the other."""
        return call == HANDLE_CALL and seconds < SECONDS_PER_GPU * (self.count or 0)

    def wedged(self, now: float | None = None) -> dict[int, float]:
        """For how many seconds GPUs have been silent, those left out that the driver may be attaching."""
        return {
            index: seconds
            for index, (call, seconds) in self.late(now).items()
            if not self._is_attached(call, seconds)
        }

    def age_seconds(self) -> float | None:
        """Seconds since the last tick was taken, whatever becomes of the wall clock; None before the first."""
        return None if self._ticked_at is None else clock_gettime(CLOCK_BOOTTIME) - self._ticked_at

    def has_answer(self) -> bool:
        """Whether NVML has said something: what its GPUs are, that there is none, or why it says nothing."""
        return self.failure is not None or self.count == 0 or self.tick_at is not None

    def is_filling(self, now: float | None = None) -> bool:
        """Whether a child has just counted the GPUs, and has had no time yet to read one."""
        if (
            self.failure is not None
            or not self.count
            or self._full
            or self._late
            or self.starting is not None
        ):
            return False
        return (monotonic() if now is None else now) - self._counted_at < DEADLINE_SECONDS

    def lost(self) -> list[int]:
        """The GPUs that NVML calls lost, or that want a reset before they answer."""
        return [index for index, sheet in self._full.items() if _why_gone(sheet) is not None]

    def answer(self, now: float | None = None) -> NvmlAnswer:
        """What NVML says, as `probe.nvml_answer` tells it."""
        asked = _Asked(self, self.late(now))
        answer = nvml_answer_of(asked)
        if self.starting is not None and self.count is not None and asked.seconds >= DEADLINE_SECONDS:
            reason = f"no answer from {self.starting[0]} within {asked.seconds:.0f} s"
            answer = replace(
                answer, status=replace(answer.status, state=SourceState.TIMED_OUT, reason=reason)
            )
        return answer

    def with_fast(self, device: Device) -> Device:
        """The device with the newest fast readings; as it is where it gave none since it was read whole."""
        index = device.id.nvml_index
        sheet = None if isinstance(index, Missing) else self._fast.get(index)
        if sheet is None or isinstance(device.responding, Missing):
            return device
        names = [name for name in sheet if name not in _NOTES] + list(sheet["missing"])
        readings = {name: reading_of(sheet, name) for name in names}
        reasons = readings.get("clocks_event_reasons")
        if isinstance(reasons, list):
            readings["clocks_event_reasons"] = tuple(reasons)
        return replace(device, **readings)

    def messages(self, late: Mapping[int, tuple[str, float]]) -> list[Any]:
        """The messages that `probe.nvml` would have sent."""
        if self.failure is not None:
            return [("failed", self.failure)]
        if self.count is None:
            return [] if self.starting is None else [("asking", self.starting[0])]
        told: list[Any] = [("library", self._library), ("count", self.count)]
        for index in range(self.count):
            full = self._full.get(index)
            if index in late or full is None:
                call = late[index][0] if index in late else HANDLE_CALL
                told.append(("late", index, call, _identity(full or {})))
                if self._is_attached(call, late.get(index, ("", 0.0))[1]):
                    told.append(("being_attached", index))
                continue
            told.append(("device", index, _overlaid(full, self._fast.get(index))))
            told += [
                ("process", int(pid), document) for pid, document in self._processes.get(index, {}).items()
            ]
            if index in self._peers:
                told.append(("peers", index, {"peers": self._peers[index]}))
        return told

    def _take_starting(self, message: Mapping[str, Any], now: float) -> bool:
        since = now - message["seconds"] if self.starting is None else self.starting[1]
        before = bool(self.late(now))
        self.starting = (message["call"], since)
        return bool(self.late(now)) != before or self.count is None

    def _take_failed(self, message: Mapping[str, Any], _now: float) -> bool:
        changed: bool = message["document"] != self.failure
        self._forget()  # nothing that was known of the GPUs holds any more
        self.failure = dict(message["document"])
        return changed

    def _take_library(self, message: Mapping[str, Any], now: float) -> bool:
        if message["count"] != self.count or message["document"] != self._library:
            self._forget()  # another driver, or other GPUs
            self._counted_at = now
        self.failure = self.starting = None
        self._library, self.count = dict(message["document"]), message["count"]
        return True

    def _take_tick(self, message: Mapping[str, Any], now: float) -> bool:
        changed = bool(message["slow"] or message["peers"])
        self.tick_at, self.tick_seconds = message["at"], message["seconds"]
        self._ticked_at = clock_gettime(CLOCK_BOOTTIME)
        for text, answer in message["slow"].items():
            self._full[int(text)] = answer["document"]
            self._processes[int(text)] = answer["processes"]
            self._fast.pop(int(text), None)
        for text, sheet in message["fast"].items():
            changed |= self._take_fast(int(text), sheet)
        for text, documents in message["peers"].items():
            self._peers[int(text)] = documents
        late_before = self.late(now).keys()
        self._note_late(message, now)
        return changed or self.late(now).keys() != late_before

    def _take_fast(self, index: int, sheet: Sheet) -> bool:
        if _why_gone(sheet) is not None and index in self._full:
            self._full[index] = _lost(self._full[index], sheet)
            self._fast.pop(index, None)
            return True
        self._fast[index] = sheet
        return False

    def _note_late(self, message: Mapping[str, Any], now: float) -> None:
        answered = {int(text) for tier in ("fast", "slow") for text in message[tier]}
        late = {int(text): told for text, told in message["late"].items()}
        for index in answered - late.keys():
            self._late.pop(index, None)
        for index, (call, seconds, unfinished) in late.items():
            # A child that took another's place counts anew; the GPU has been silent for longer.
            since = self._late[index][1] if index in self._late else now - seconds
            self._late[index] = (call, since)
            if unfinished is not None and index not in self._full:
                self._full[index] = _identity(unfinished)

    def _take_paused(self, _message: Mapping[str, Any], _now: float) -> bool:
        return False

    def _take_gone(self, _message: Mapping[str, Any], _now: float) -> bool:
        return False


class _Asked:
    """The picture as `nvml_answer_of` wants it."""

    def __init__(self, picture: NvmlPicture, late: Mapping[int, tuple[str, float]]) -> None:
        self.messages = picture.messages(late)
        self.ending: str | None = "timed_out" if late or picture.failure is None else "finished"
        self.detail = ""
        self.started_at = 0.0
        waited = [seconds for _, seconds in late.values()]
        if picture.starting is not None:
            waited.append(monotonic() - picture.starting[1])
        self.seconds = max(waited, default=picture.tick_seconds or 0.0)


def _identity(sheet: Mapping[str, Any]) -> Sheet:
    known = {name: sheet[name] for name in _IDENTITY if name in sheet}
    missing = {name: reason for name, reason in sheet.get("missing", {}).items() if name in _IDENTITY}
    return {**known, "missing": missing, "missing_detail": {}}


def _overlaid(full: Mapping[str, Any], fast: Mapping[str, Any] | None) -> Sheet:
    """The whole sheet with the newer readings of the fast one."""
    if fast is None:
        return dict(full)
    fresh = {name for name in fast if name not in _NOTES} | set(fast["missing"])
    overlaid: Sheet = {name: value for name, value in full.items() if name not in fresh}
    overlaid |= {name: value for name, value in fast.items() if name not in _NOTES}
    for note in _NOTES[:2]:
        kept = {name: words for name, words in full[note].items() if name not in fresh}
        overlaid[note] = {**kept, **fast[note]}
    return overlaid


def _why_gone(sheet: Mapping[str, Any]) -> str | None:
    """The reason why the whole GPU gives nothing any more; None where it does."""
    reasons = (MissingReason.DEVICE_LOST.value, MissingReason.RESET_REQUIRED.value)
    return next((reason for reason in reasons if reason in sheet["missing"].values()), None)


def _lost(full: Mapping[str, Any], fast: Mapping[str, Any]) -> Sheet:
    """The sheet of a GPU that was lost between two whole readings: its identity, and nothing else."""
    identity = _identity(full)
    lost = _why_gone(fast) or MissingReason.DEVICE_LOST.value
    fields = {*full, *full["missing"]} - {*_NOTES, *identity, *identity["missing"]}
    details = {name: words for name, words in fast["missing_detail"].items() if words}
    missing = {**identity["missing"], **dict.fromkeys(fields, lost)}
    return {**identity, "missing": missing, "missing_detail": details}
