"""How long operations take, in nanoseconds, as each kind of device counts them, and how often to repeat them."""

import time
from dataclasses import dataclass
from typing import Protocol

import torch

# Events resolve about half a microsecond: of operations this small, several are timed as one.
_SMALL_BYTES = 64 * 1024
_OPERATIONS_PER_SMALL_SAMPLE = 10
_LONG_BURST = 20
_LARGE_BYTES = 16 * 1024**2  # an operation of this size takes no less than the one queued ahead of it

# Per size, so that a whole sweep of 24 sizes stays within seconds on two cores and still has
# enough iterations for a p50; nccl-tests repeats 20 times by default.
_MEASURE_SECONDS = 0.15
_WARMUP_SECONDS = 0.05
# Single operations after a barrier, on GPUs, after the bursts.
ISOLATED_ITERATIONS = 5


@dataclass(frozen=True, slots=True)
class Samples:
    """Nanoseconds of each sample, and when each was entered, by the clock reading that its time starts at.

    `entered_nanoseconds` is the host's CLOCK_MONOTONIC; empty where CUDA events took the times.
    """

    nanoseconds: tuple[int, ...]
    entered_nanoseconds: tuple[int, ...] = ()


class Stopwatch(Protocol):
    """Takes the time before and after each sample of operations, without waiting for any."""

    def start(self) -> None:
        """Take the time right before an operation is entered."""

    def stop(self) -> None:
        """Take the time right after the call came back."""

    def read(self) -> Samples:
        """The samples since the last reading; waits for the last to end."""


class HostStopwatch:
    """The monotonic clock around calls that block until they are done, as gloo's do."""

    def __init__(self) -> None:
        """Start with nothing measured."""
        self._marks: list[int] = []

    def start(self) -> None:
        """Take the time right before an operation is entered."""
        self._marks.append(time.monotonic_ns())

    stop = start  # nothing but the next mark

    def read(self) -> Samples:
        """The samples since the last reading."""
        marks, self._marks = self._marks, []
        entered, left = tuple(marks[::2]), marks[1::2]
        return Samples(tuple(after - before for before, after in zip(entered, left, strict=True)), entered)


class CudaStopwatch:
    """CUDA events around operations on the current stream.

    torch runs collectives on streams of its own and lets the current stream wait for them, so that
    events on the current stream enclose them.
    """

    def __init__(self, device: torch.device) -> None:
        """Start with nothing measured on that GPU."""
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def start(self) -> None:
        """Put an event on the stream before an operation."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    stop = start  # an event after it

    def read(self) -> Samples:
        """The samples since the last reading, once the stream has finished all."""
        events, self._events = self._events, []
        torch.cuda.synchronize(self._device)
        pairs = zip(events[::2], events[1::2], strict=True)
        return Samples(
            tuple(round(before.elapsed_time(after) * 1e6) for before, after in pairs)
        )  # from milliseconds


def stopwatch_for(device: torch.device, *, on_host: bool = False) -> Stopwatch:
    """The stopwatch for operations on that device; `on_host` for those that block the host anyway."""
    return CudaStopwatch(device) if device.type == "cuda" and not on_host else HostStopwatch()


def operations_per_sample(device: torch.device, size_bytes: int) -> int:
    """The number of operations to time as one, so that the clock's resolution does not show."""
    small = size_bytes < _SMALL_BYTES
    return _OPERATIONS_PER_SMALL_SAMPLE if small and device.type == "cuda" else 1


def needs_lead(device: torch.device, operations: int, size_bytes: int) -> bool:
    """Whether a burst of that many operations is so short that its start would distort the times.

    A GPU's large buffers leave room for one or two; nccl-tests times twenty in a row. The time of a small
    operation is its launch.
    """
    return device.type == "cuda" and operations < _LONG_BURST and size_bytes >= _LARGE_BYTES


MIN_ITERATIONS, MAX_ITERATIONS = 5, 100
MIN_WARMUP, MAX_WARMUP = 1, 5


@dataclass(frozen=True, slots=True)
class Repeats:
    """Warm-ups, not timed, and then iterations, timed."""

    warmup: int
    iterations: int


def choose_repeats(operation_seconds: float) -> Repeats:
    """The repeats that fit into 0.05 s of warm-up and 0.15 s of measuring: 1 to 5, and 5 to 100."""
    return Repeats(
        warmup=_fit(_WARMUP_SECONDS, operation_seconds, MIN_WARMUP, MAX_WARMUP),
        iterations=_fit(_MEASURE_SECONDS, operation_seconds, MIN_ITERATIONS, MAX_ITERATIONS),
    )


def _fit(budget_seconds: float, operation_seconds: float, low: int, high: int) -> int:
    if operation_seconds <= 0:
        return high
    return max(low, min(high, int(budget_seconds / operation_seconds)))
