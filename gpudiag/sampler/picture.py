"""The messages of the sampler's children so far, merged into one answer of NVML.

A GPU that does not answer keeps its identity and loses its readings: they are missing for that reason,
and are never shown as current. A child that replaces another adds to what is known.
"""

from collections.abc import Mapping
from dataclasses import replace
from time import CLOCK_BOOTTIME, clock_gettime, monotonic
from typing import Any

from gpudiag.model.codec import all_missing, read_sheet, readings_of
from gpudiag.model.device import Device, SourceState
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.attaching import HANDLE_CALL, SECONDS_PER_GPU
from gpudiag.probe.nvml.answer import (
    GONE,
    NvmlAnswer,
    NvmlFailure,
    NvmlLibrary,
    library_of_sleepers,
    make_answer,
    responding_of,
    sleeping_device,
    unread_device,
    whole_device,
    why_late,
)
from gpudiag.reference.readings import READINGS

DEADLINE_SECONDS = 2.0  # for one GPU; DESIGN: the sampler's

# A tick is missed where it took longer than the time to the next one, or where a call of a GPU had not
# returned when it was sent. It is not missed for the time in which the machine had no processor for the
# sampler.
_PATIENCE_SECONDS = 0.4  # of a call; the sampler waits 0.5 s for it
_MISSED_IN_A_ROW = 3  # then the sampler is slow
_KEPT_IN_A_ROW = 5  # then it is no longer

# Of a tick: what may count as time without a processor, so that a GPU that hangs on a busy host is found all
# the same.
_MOST_WAITED_SHARE = 0.75

# A GPU that is read so soon after a child has counted them was attached already, and so are the others. Own
# choice: half of it is what the sampler waits for a tick.
_AWAKE_SECONDS = 1.0

# A GPU's identity, besides its id: all that is kept of one that does not answer.
_IDENTITY = tuple(
    one.name for one in READINGS if one.tier == "once" and one.name in Device.__dataclass_fields__
)


class NvmlPicture:
    """NVML's answer so far; `add` messages of `gpudiag.sampler.child`."""

    def __init__(self) -> None:
        """Start empty."""
        self.answered_at: float | None = (
            None  # Unix time of the last tick ever; its readings may be forgotten
        )
        self._forget()

    def _forget(self) -> None:
        self.count: int | None = None
        self.failure: NvmlFailure | None = None
        self.starting: tuple[str, float] | None = None  # the call, and since when
        self.tick_at: float | None = None  # Unix time of the last tick that was added
        self.tick_seconds: float | None = None
        self.slow: str | None = None  # why the sampler does not keep its pace; None while it does
        self._missed = self._kept = 0  # ticks in a row
        self._ticked_at: float | None = None  # CLOCK_BOOTTIME: seconds since boot, sleep included
        self._counted_at = 0.0  # when a child counted the GPUs (monotonic)
        self._library: NvmlLibrary | None = None
        self._devices: dict[int, Device] = {}  # with the newest readings
        self._fast: dict[int, dict[str, Any]] = {}  # those that came since the GPU was last read completely
        self._peers: dict[int, dict[str, Any]] = {}
        self._failed_calls: dict[int, dict[str, str]] = {}
        self._late: dict[int, tuple[str, float]] = {}  # the call, and since when (monotonic)
        self._is_awake = False  # the child that counted last has read a GPU at once
        self._hung: set[int] = set()  # GPUs that were silent while the driver attached none

    def add(self, message: Mapping[str, Any], now: float | None = None) -> bool:
        """Add one message; True where more than the fast readings has changed."""
        now = monotonic() if now is None else now
        return bool(getattr(self, f"_add_{message['kind']}")(message, now))

    def late(self, now: float | None = None) -> dict[int, tuple[str, float]]:
        """For each GPU silent beyond the deadline: the call, and for how many seconds."""
        now = monotonic() if now is None else now
        if self.starting is not None and now - self.starting[1] >= DEADLINE_SECONDS:
            call, since = self.starting
            return {index: (call, now - since) for index in range(self.count or 0)}
        return {
            index: (call, now - since)
            for index, (call, since) in self._late.items()
            if now - since >= DEADLINE_SECONDS
        }

    def is_hanging(self, now: float | None = None) -> bool:
        """Whether a call into the driver has not come back within the deadline."""
        now = monotonic() if now is None else now
        starting = self.starting is not None and now - self.starting[1] >= DEADLINE_SECONDS
        return starting or bool(self.late(now))

    def _may_be_attaching(self, index: int, call: str, seconds: float) -> bool:
        """Whether the driver may still attach a late GPU, one after the other; not if others came at once.

        A GPU that hung stays so when a fresh child asks for its handle.
        """
        if self._is_awake or index in self._hung:
            return False
        return call == HANDLE_CALL and seconds < SECONDS_PER_GPU * (self.count or 0)

    def wedged(self, now: float | None = None) -> dict[int, float]:
        """For how many seconds each GPU has been silent, without those that the driver may be attaching."""
        return {
            index: seconds
            for index, (call, seconds) in self.late(now).items()
            if not self._may_be_attaching(index, call, seconds)
        }

    def age_seconds(self) -> float | None:
        """Seconds since the last tick was added, by the boot-time clock; None before the first."""
        return None if self._ticked_at is None else clock_gettime(CLOCK_BOOTTIME) - self._ticked_at

    def has_answer(self) -> bool:
        """Whether there is an answer yet: a tick, a count of 0, or a failure."""
        return self.failure is not None or self.count == 0 or self.tick_at is not None

    def is_filling(self, now: float | None = None) -> bool:
        """Whether a child has just counted the GPUs and has not had time to read one."""
        if (
            self.failure is not None
            or not self.count
            or self._devices
            or self._late
            or self.starting is not None
        ):
            return False
        return (monotonic() if now is None else now) - self._counted_at < DEADLINE_SECONDS

    def lost(self) -> list[int]:
        """The indices of GPUs that NVML reports as lost, or as needing a reset."""
        return [index for index, device in self._devices.items() if _is_gone(device)]

    def answer(self, now: float | None = None) -> NvmlAnswer:
        """NVML's answer so far, in the form of `probe/nvml/answer.py`."""
        late = self.late(now)
        waited = [seconds for _, seconds in late.values()]
        if self.starting is not None:
            waited.append(monotonic() - self.starting[1])
        seconds = max(waited, default=self.tick_seconds or 0.0)
        if self.count is None:
            call = "nvmlInit" if self.starting is None else self.starting[0]
            silence = NvmlFailure(SourceState.TIMED_OUT, f"no answer from {call} within {seconds:.1f} s")
            return make_answer(None, self.failure or silence, None, {}, seconds)
        rows = [self._row(index, late, seconds) for index in range(self.count)]
        failed = {index: calls for index, calls in self._failed_calls.items() if index not in late}
        answer = make_answer(self._library, None, rows, failed, seconds)
        if self.starting is None or seconds < DEADLINE_SECONDS:
            return answer
        reason = f"no answer from {self.starting[0]} within {seconds:.0f} s"
        return replace(answer, status=replace(answer.status, state=SourceState.TIMED_OUT, reason=reason))

    def _row(self, index: int, late: Mapping[int, tuple[str, float]], seconds: float) -> Device:
        device = self._devices.get(index)
        if device is not None and index not in late:
            return device
        call, silent_seconds = late.get(index, (HANDLE_CALL, 0.0))
        attaching = self._may_be_attaching(index, call, silent_seconds)
        if device is None:
            return unread_device(index, {}, why_late(call, 0, seconds, attaching=attaching))
        identity = (device.id.uuid, device.id.bus_id, *(getattr(device, name) for name in _IDENTITY))
        known = sum(not isinstance(reading, Missing) for reading in identity)
        return _silenced(device, why_late(call, known, seconds, attaching=attaching))

    def with_fast(self, device: Device) -> Device:
        """The device of a snapshot with the newest fast readings; unchanged where there are none of this GPU.

        A reading that NVML does not support may have come from another source, and is kept; so is one that by
        the snapshot the GPU does not have, whatever number NVML gives.
        """
        index = device.id.nvml_index
        fast = None if isinstance(index, Missing) else self._fast.get(index)
        if fast is None or isinstance(index, Missing) or isinstance(device.responding, Missing):
            return device
        known, asked = device.id.uuid, self._devices[index].id.uuid
        if known != asked and not isinstance(known, Missing) and not isinstance(asked, Missing):
            return device  # another GPU has that index by now
        kept = {
            name: reading
            for name, reading in fast.items()
            if not (_is_none_here(reading) or _is_none_here(getattr(device, name)))
        }
        return replace(device, **kept)

    def _add_starting(self, message: Mapping[str, Any], now: float) -> bool:
        since = now - message["seconds"] if self.starting is None else self.starting[1]
        before = bool(self.late(now))
        self.starting = (message["call"], since)
        return bool(self.late(now)) != before or self.count is None

    def _add_failed(self, message: Mapping[str, Any], _now: float) -> bool:
        failure = read_sheet(NvmlFailure, message["document"])
        changed = failure != self.failure
        self._forget()  # nothing known of the GPUs is valid any more
        self.failure = failure
        return changed

    def _add_library(self, message: Mapping[str, Any], now: float) -> bool:
        library = read_sheet(NvmlLibrary, message["document"])
        if message["count"] != self.count or library != self._library:
            self._forget()  # another driver, or other GPUs
        self._counted_at, self._is_awake = now, False
        self.failure = self.starting = None
        self._library, self.count = library, message["count"]
        return True

    def _add_asleep(self, message: Mapping[str, Any], now: float) -> bool:
        """All GPUs are asleep, and NVML was left alone."""
        bus_ids = message["bus_ids"]
        known = self.is_asleep() and self.count == len(bus_ids)
        if not known:
            self._forget()
            self._counted_at = now
        self._library, self.count = library_of_sleepers(), len(bus_ids)
        self._devices = {index: sleeping_device(index, bus_id) for index, bus_id in enumerate(bus_ids)}
        self.tick_at = self.answered_at = message["at"]
        self.tick_seconds = 0.0
        self._ticked_at = clock_gettime(CLOCK_BOOTTIME)
        return not known

    def is_asleep(self) -> bool:
        """Whether a GPU is asleep: what would call the driver must wait."""
        return any(device.is_asleep for device in self._devices.values())

    def _add_tick(self, message: Mapping[str, Any], now: float) -> bool:
        changed = bool(message["slow"] or message["peers"] or message.get("prompt"))
        self.tick_at, self.tick_seconds = message["at"], message["seconds"]
        self.answered_at = self.tick_at
        self._note_pace(message)
        self._ticked_at = clock_gettime(CLOCK_BOOTTIME)
        for text, answer in message["slow"].items():
            self._add_whole(int(text), answer)
        self._is_awake |= bool(message["slow"]) and now - self._counted_at < _AWAKE_SECONDS
        for text, bus_id in message.get("asleep", {}).items():
            changed |= int(text) not in self._devices
            self._devices[int(text)] = sleeping_device(int(text), bus_id)
        for text, sheet in message["fast"].items():
            changed |= self._add_fast(int(text), sheet)
        for text, documents in message["peers"].items():
            self._add_peers(int(text), documents)
        late_before = self.late(now).keys()
        self._note_late(message, now)
        return changed or self.late(now).keys() != late_before

    def _note_pace(self, message: Mapping[str, Any]) -> None:
        """Note whether this tick was missed, and after several that the sampler is slow, or well."""
        interval, waited = message["interval"], message["waited"]
        calls = [(call, seconds) for call, seconds, _ in message["late"].values()]
        is_late = any(seconds - waited > _PATIENCE_SECONDS for _, seconds in calls)
        if is_late or message["seconds"] - waited > interval:
            self._missed, self._kept = self._missed + 1, 0
        else:
            self._missed, self._kept = 0, self._kept + 1
        if self._missed >= _MISSED_IN_A_ROW:
            call, seconds = message["longest"]
            if calls and seconds < _PATIENCE_SECONDS:
                call, seconds = max(calls, key=lambda one: one[1])
            self.slow = f"the last {self._missed} readings were late: {call} has taken {seconds:.1f} s"
        elif self._kept >= _KEPT_IN_A_ROW:
            self.slow = None

    def _add_whole(self, index: int, answer: Mapping[str, Any]) -> None:
        described = {int(pid): sheet for pid, sheet in answer["processes"].items()}
        device = whole_device(index, answer["document"], described)
        before = self._devices.get(index)
        if before is not None and isinstance(device.responding, Missing) and _is_nameless(device):
            # Its handle is refused: it is the GPU that had the index.
            device = _silenced(before, device.responding)
        self._devices[index] = device
        if index in self._peers and device.responding is True:
            self._devices[index] = replace(device, **self._peers[index])
        self._failed_calls[index] = answer["document"].get("failed_calls", {})
        self._fast.pop(index, None)

    def _add_fast(self, index: int, sheet: dict[str, Any]) -> bool:
        """Add the newest readings; True where the GPU as a whole has fallen silent, or answers again."""
        before = self._devices.get(index)
        if before is None:
            return False
        fast = readings_of(Device, sheet)
        device = replace(before, **fast)
        responding = responding_of(device)
        if isinstance(responding, Missing) and responding.reason in GONE:
            self._devices[index] = _silenced(device, responding)
            self._failed_calls.pop(index, None)
            self._fast.pop(index, None)
            return True
        self._devices[index] = replace(device, responding=responding)
        self._fast[index] = fast
        return responding != before.responding

    def _add_peers(self, index: int, documents: list[Any]) -> None:
        self._peers[index] = readings_of(Device, {"peers": documents})
        if index in self._devices:
            self._devices[index] = replace(self._devices[index], **self._peers[index])

    def _note_late(self, message: Mapping[str, Any], now: float) -> None:
        answered = {int(text) for tier in ("fast", "slow") for text in message[tier]}
        late = {int(text): wait for text, wait in message["late"].items()}
        for index in answered - late.keys():
            self._late.pop(index, None)
            self._hung.discard(index)
        # A tick in which the machine had no processor for the sampler is not silence; a GPU's own wait goes
        # on, slowly.
        waited = min(message["waited"], _MOST_WAITED_SHARE * max(message["seconds"], message["interval"]))
        for index, (call, seconds, unfinished) in late.items():
            # A child that replaced another counts from zero; the GPU has been silent for longer.
            since = self._late[index][1] if index in self._late else now - seconds
            self._late[index] = (call, min(now, since + waited) if self._is_recent(index, now) else since)
            if unfinished is not None and index not in self._devices:
                self._devices[index] = whole_device(index, unfinished, {})

        self._hung |= self.wedged(now).keys()

    def _is_recent(self, index: int, now: float) -> bool:
        """Whether the GPU does not count as silent yet: one that does stays so until it answers."""
        return index not in self._late or now - self._late[index][1] < DEADLINE_SECONDS

    def _add_paused(self, _message: Mapping[str, Any], _now: float) -> bool:
        return False

    def _add_gone(self, _message: Mapping[str, Any], _now: float) -> bool:
        return False


def _is_gone(device: Device) -> bool:
    """Whether NVML reports the GPU as lost, or as needing a reset."""
    return isinstance(device.responding, Missing) and device.responding.reason in GONE


def _is_none_here(reading: object) -> bool:
    """Whether the GPU does not have this reading."""
    return isinstance(reading, Missing) and reading.reason is MissingReason.NOT_SUPPORTED


def _is_nameless(device: Device) -> bool:
    """Whether nothing shows which GPU it is."""
    return isinstance(device.id.uuid, Missing) and isinstance(device.id.bus_id, Missing)


def _silenced(device: Device, why: Missing) -> Device:
    """The device when it does not answer: its identity, and the reason in place of every reading."""
    identity = {name: getattr(device, name) for name in _IDENTITY}
    return all_missing(Device, Missing(why.reason), id=device.id, responding=why, **identity)
