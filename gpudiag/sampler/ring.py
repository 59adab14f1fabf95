"""The last hour at 1 s and the last day at 10 s, of up to 32 GPUs, in plain arrays: 49 kB a series.

In an array NaN stands for "no reading"; readers get None for it.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpudiag.compat import StrEnum
from gpudiag.model.device import Device
from gpudiag.model.reading import Missing, value_or
from gpudiag.reference.readings import READINGS
from gpudiag.reference.vocabulary import reason_mask

# --- what is kept


class Kind(StrEnum):
    """How the samples of a longer step become one number."""

    MEAN = "mean"
    LAST = "last"  # of counters and limits
    BITS = "bits"  # every bit that was set


# Series derived from readings that are not numbers.
_DERIVED = {"clocks_event_mask": Kind.BITS, "process_count": Kind.LAST}
_READINGS = {one.name: Kind(one.history) for one in READINGS if one.history is not None}
SERIES: dict[str, Kind] = _READINGS | _DERIVED
NAMES = tuple(SERIES)


def sample_of(device: Device) -> dict[str, float]:
    """The values of one GPU's readings, by series; missing readings are left out."""
    sample = {}
    for name in _READINGS:
        reading = getattr(device, name)
        if not isinstance(reading, Missing):
            sample[name] = float(reading)
    if not isinstance(device.clocks_event_reasons, Missing):
        sample["clocks_event_mask"] = float(reason_mask(device.clocks_event_reasons))
    if not isinstance(device.processes, Missing):
        sample["process_count"] = float(len(value_or(device.processes, ())))
    return sample


# --- the ring

MAX_DEVICES = 32  # 16 that are there, and those that were replaced: their last day is kept too
MAX_POINTS = 2000  # of one series in one answer
CLOCK_SECONDS = 60.0  # if the clock is set back by less, samples are dropped until it has caught up
_NAN = math.nan


@dataclass(frozen=True, slots=True)
class Tier:
    """One resolution: seconds per slot, and how many slots are kept."""

    step_seconds: int
    slots: int

    def empty(self) -> "array[float]":
        """As many slots without a reading."""
        return array("f", [_NAN]) * self.slots


FINE = Tier(1, 3600)
COARSE = Tier(10, 8640)
TIERS = (FINE, COARSE)


class DeviceRing:
    """One GPU's series."""

    def __init__(self) -> None:
        """Start empty."""
        # By the series' place in NAMES; none for a series of which this GPU has had no reading.
        self.arrays: dict[Tier, dict[int, array[float]]] = {tier: {} for tier in TIERS}
        self.newest: dict[Tier, int] = {}  # the newest slot of each tier: Unix time // step
        self._sums = [0.0] * len(NAMES)
        self._counts = [0] * len(NAMES)

    def add(self, at: float, sample: Sequence[float]) -> None:
        """Store one sample, in the order of NAMES, NaN where there is no reading.

        A sample older than the newest one is dropped. If it is much older, the clock had been ahead: all
        later samples are forgotten, and this one is stored.
        """
        newest = self.newest.get(FINE)
        if newest is not None and at < newest * FINE.step_seconds - CLOCK_SECONDS:
            self.forget_after(at)
        if not (self._advance(FINE, at) and self._advance(COARSE, at)):
            return
        fine, coarse = (self.newest[tier] % tier.slots for tier in TIERS)
        for place, (name, value) in enumerate(zip(NAMES, sample, strict=True)):
            if value != value:
                continue
            self._values(FINE, place)[fine] = value
            stored = self._values(COARSE, place)
            stored[coarse] = self._merged(place, SERIES[name], stored[coarse], value)

    def _values(self, tier: Tier, place: int) -> "array[float]":
        if place not in self.arrays[tier]:
            self.arrays[tier][place] = tier.empty()
        return self.arrays[tier][place]

    def forget_after(self, at: float) -> None:
        """Forget everything later than `at`, in Unix seconds."""
        for tier in TIERS:
            slot, before = int(at) // tier.step_seconds, self.newest.get(tier)
            if before is None or before <= slot:
                continue
            for later in range(max(slot + 1, before - tier.slots + 1), before + 1):
                for values in self.arrays[tier].values():
                    values[later % tier.slots] = _NAN
            self.newest[tier] = slot

    def _merged(self, place: int, kind: Kind, stored: float, value: float) -> float:
        if kind is Kind.LAST or stored != stored:
            self._sums[place], self._counts[place] = value, 1
            return value
        if kind is Kind.BITS:
            return float(int(stored) | int(value))
        self._sums[place] += value
        self._counts[place] += 1
        return self._sums[place] / self._counts[place]

    def _advance(self, tier: Tier, at: float) -> bool:
        """Make the slot of `at` the newest and clear those in between; False where it is older."""
        slot = int(at) // tier.step_seconds
        before = self.newest.get(tier)
        if before is not None and slot < before:
            return False
        if before is not None:
            for skipped in range(max(before + 1, slot - tier.slots + 1), slot + 1):
                for values in self.arrays[tier].values():
                    values[skipped % tier.slots] = _NAN
        self.newest[tier] = slot
        return True

    def slots(self, tier: Tier, place: int, first: int, last: int) -> "array[float]":
        """The values of the slots from `first` to `last`, inclusive; NaN for one that is not kept."""
        newest = self.newest.get(tier, first - 1)
        begin, end = max(first, newest - tier.slots + 1), min(last, newest)
        values = self.arrays[tier].get(place)
        if begin > end or values is None:
            return array("f", [_NAN]) * (last - first + 1)
        start, stop = begin % tier.slots, end % tier.slots + 1
        kept = values[start:stop] if start < stop else values[start:] + values[:stop]
        return array("f", [_NAN]) * (begin - first) + kept + array("f", [_NAN]) * (last - end)


class Ring:
    """Every GPU's series, by UUID."""

    def __init__(self) -> None:
        """Start empty."""
        self.devices: dict[str, DeviceRing] = {}

    def forget_after(self, at: float) -> None:
        """Forget every GPU's samples later than `at` (Unix seconds): the clock was ahead then."""
        for device in self.devices.values():
            device.forget_after(at)

    def add(self, uuid: str, at: float, sample: Mapping[str, float]) -> tuple[float, ...] | None:
        """Store one sample; its values in the order of NAMES, or None where there is no room for the GPU."""
        values = tuple(sample.get(name, _NAN) for name in NAMES)
        return values if self.add_values(uuid, at, values) else None

    def add_values(self, uuid: str, at: float, values: Sequence[float]) -> bool:
        """Store values in the order of NAMES; False where there is no room for another GPU."""
        if uuid not in self.devices:
            if len(self.devices) >= MAX_DEVICES and not self._drop_oldest(at):
                return False
            self.devices[uuid] = DeviceRing()
        self.devices[uuid].add(at, values)
        return True

    def _drop_oldest(self, at: float) -> bool:
        """Drop the GPU that has had no sample for longest; False where each has had one within the hour."""
        uuid = min(self.devices, key=lambda one: self.devices[one].newest.get(FINE, 0))
        if self.devices[uuid].newest.get(FINE, 0) >= at // FINE.step_seconds - FINE.slots:
            return False
        del self.devices[uuid]
        return True


@dataclass(frozen=True, slots=True)
class Window:
    """The slots for a queried time range: `count` points of `width` slots each."""

    tier: Tier
    first_slot: int
    width: int
    count: int

    @property
    def step_seconds(self) -> float:
        """Seconds from one point to the next."""
        return float(self.width * self.tier.step_seconds)

    def times(self) -> tuple[float, ...]:
        """When each point begins, in Unix seconds."""
        start = self.first_slot * self.tier.step_seconds
        return tuple(start + number * self.step_seconds for number in range(self.count))


def plan_window(from_at: float, to_at: float, step_seconds: float, now: float) -> Window:
    """The slots for that range; the step is lengthened where there would be too many points."""
    recent = from_at >= now - FINE.slots and step_seconds < COARSE.step_seconds
    tier = FINE if recent else COARSE
    first = int(from_at) // tier.step_seconds
    last = max(first, int(to_at) // tier.step_seconds)
    wanted = max(1, math.ceil(step_seconds / tier.step_seconds))
    width = max(wanted, math.ceil((last - first + 1) / MAX_POINTS))
    first -= first % width  # a time has the same point in every range
    return Window(tier, first, width, (last - first) // width + 1)


def read_window(ring: DeviceRing, name: str, window: Window) -> tuple[float | None, ...]:
    """The points of one series; None where there is no reading."""
    place, kind = NAMES.index(name), SERIES[name]
    last = window.first_slot + window.count * window.width - 1
    values = ring.slots(window.tier, place, window.first_slot, last).tolist()
    if window.width == 1:
        return tuple([None if value != value else round(value, 3) for value in values])
    steps = zip(*[iter(values)] * window.width, strict=True)
    if kind is Kind.MEAN:  # the sum alone shows whether a reading is missing
        return tuple(
            [
                round(total / window.width, 3) if (total := sum(step)) == total else _point(step, kind)
                for step in steps
            ]
        )
    return tuple([_point(step, kind) for step in steps])


def spacing_seconds(ring: DeviceRing, window: Window) -> float:
    """How far apart nine in ten samples of that range are at most; else the tier's step."""
    last = window.first_slot + window.count * window.width - 1
    columns = (ring.slots(window.tier, place, window.first_slot, last) for place in range(len(NAMES)))
    values = next((column for column in columns if any(value == value for value in column)), ())
    filled = [slot for slot, value in enumerate(values) if value == value]
    gaps = sorted(later - slot for slot, later in pairwise(filled))
    step = float(window.tier.step_seconds)
    return gaps[len(gaps) * 9 // 10] * step if gaps else step


def _point(values: Sequence[float], kind: Kind) -> float | None:
    if kind is Kind.LAST and values[-1] == values[-1]:
        return values[-1]
    there = [value for value in values if value == value]
    if not there:
        return None
    if kind is Kind.LAST:
        return there[-1]
    if kind is Kind.BITS:
        bits = 0
        for value in there:
            bits |= int(value)
        return float(bits)
    return round(sum(there) / len(there), 3)
