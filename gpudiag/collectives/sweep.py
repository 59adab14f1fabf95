"""The sweep on one rank, case by case: fill, warm up, time, verify, emit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import torch

from gpudiag.collectives.cases import Case, Sweep
from gpudiag.collectives.graphs_and_buffers import Graphs, allocate
from gpudiag.collectives.inspection import Inspector
from gpudiag.collectives.operations import CALLS, BufferArea, Buffers, Call, fill, reduce_op
from gpudiag.collectives.pattern import Pattern, as_bits
from gpudiag.collectives.process_group import Announcement, ProcessGroup
from gpudiag.collectives.results import RankCase, Ways
from gpudiag.model.codec import encode
from gpudiag.model.operation import BARRIER, OPERATIONS
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.ranks.stages import MEASURE, VERIFY, WARMUP

# --- how long operations take

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


class Stopwatch(Protocol):
    """Takes the time before and after each sample of operations, without waiting for any."""

    def start(self) -> None:
        """Take the time right before an operation is entered."""

    def stop(self) -> None:
        """Take the time right after the call came back."""

    def read(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The nanoseconds of each sample since the last reading, and when each was entered.

        Waits for the last to end. Entered by the clock reading that its time starts at, the host's
        CLOCK_MONOTONIC; none where CUDA events took the times.
        """


class HostStopwatch:
    """The monotonic clock around calls that block until they are done, as gloo's do."""

    def __init__(self) -> None:
        """Start with nothing measured."""
        self._marks: list[int] = []

    def start(self) -> None:
        """Take the time right before an operation is entered."""
        self._marks.append(time.monotonic_ns())

    stop = start  # nothing but the next mark

    def read(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The samples since the last reading."""
        marks, self._marks = self._marks, []
        entered, left = tuple(marks[::2]), marks[1::2]
        return tuple(after - before for before, after in zip(entered, left, strict=True)), entered


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

    def read(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The samples since the last reading, once the stream has finished all."""
        events, self._events = self._events, []
        torch.cuda.synchronize(self._device)
        pairs = zip(events[::2], events[1::2], strict=True)
        milliseconds = [before.elapsed_time(after) for before, after in pairs]
        return tuple(round(time * 1e6) for time in milliseconds), ()


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


def choose_repeats(operation_seconds: float, *, in_bounds: bool = False) -> Repeats:
    """The repeats that fit into 0.05 s of warm-up and 0.15 s of measuring: 1 to 5, and 5 to 100.

    `in_bounds`: 2 where one operation takes long, for the sizes share the time.
    """
    few = _SLOW_ITERATIONS if in_bounds and operation_seconds > _SLOW_SECONDS else MIN_ITERATIONS
    return Repeats(
        warmup=_fit(_WARMUP_SECONDS, operation_seconds, MIN_WARMUP, MAX_WARMUP),
        iterations=_fit(_MEASURE_SECONDS, operation_seconds, few, MAX_ITERATIONS),
    )


def _fit(budget_seconds: float, operation_seconds: float, low: int, high: int) -> int:
    if operation_seconds <= 0:
        return high
    return max(low, min(high, int(budget_seconds / operation_seconds)))


# Where ranks of several hosts share a slow network, the sizes of one operation may take so long together;
# then fewer sizes are measured, and each less often. Explicit iterations are run as they are asked for.
SERIES_SECONDS = 8.0
_SLOW_SECONDS = 0.05  # an operation that takes longer is run twice instead of five times
_SLOW_ITERATIONS = 2
_PER_CASE = 6  # about as many operations: two warm-ups, two iterations, a barrier and what ranks agree on
_LARGEST_STEP = 256  # what a size so many times larger takes is not known
_BANDWIDTH_BYTES = 64 * 1024  # above this, the time of an operation grows with its size


def count_left_out(sizes_bytes: Sequence[int], now_bytes: int, seconds: float, left_seconds: float) -> int:
    """How many of the next sizes to leave out, so that what is left of the time covers the whole range.

    `seconds` is what one operation of `now_bytes` takes. All of them where not even the next one fits.
    """

    def cost(size_bytes: int) -> float:
        grown = max(1.0, size_bytes / max(now_bytes, _BANDWIDTH_BYTES))
        return _PER_CASE * seconds * grown

    if sum(map(cost, sizes_bytes)) <= left_seconds:
        return 0
    near = [size for size in sizes_bytes if size <= _LARGEST_STEP * max(now_bytes, 8)]
    fits = int(left_seconds / cost(sizes_bytes[0]))
    if fits < 1:
        return len(sizes_bytes)
    wanted = -(-len(sizes_bytes) // fits) - 1
    skipped = min(wanted, max(0, len(near) - 1))
    while skipped and cost(sizes_bytes[skipped]) > left_seconds:
        skipped -= 1
    return skipped


# --- case by case

# Each timed operation of a burst has its own buffers, filled before and verified after, so that the
# operations run back to back. All buffers of a burst share this much memory: on a GPU several times its
# L2 cache, so that no operation finds its data there.
_BURST_BYTES = {"cpu": 64 * 1024**2, "cuda": 256 * 1024**2}
# Warm-ups before rank 0 decides on more: the first one may still open connections.
_PROBES = 2
# How far an operation may exceed its estimate before the agent calls it stalled, on top of the
# agent's own factor: the estimate comes from one or two operations.
_PREDICTION_SLACK = 2.0


def _series_of(case: Case) -> tuple[str, str | None, str, bool]:
    """What the sizes of one sweep have in common."""
    return case.op, case.reduce, case.dtype, case.in_place


class SweepRunner:
    """Runs every case of a sweep on this rank, in step with the other ranks."""

    def __init__(self, group: ProcessGroup, sweep: Sweep, *, spans_hosts: bool = False) -> None:
        """Allocate the memory that all cases share.

        `spans_hosts`: a slow network may be between the ranks.
        """
        self._group = group
        self._in_bounds = spans_hosts and sweep.iterations is None
        self._series_began = 0.0
        self._left_out = 0  # of the cases that follow
        self._sweep = sweep
        burst_bytes = _BURST_BYTES[group.device.type]
        self._kind_of_buffers: Reading[str] = NOT_ASKED
        self._graphs = Graphs() if sweep.graph else None
        self._area = BufferArea(sweep.cases, group.rank, group.world_size, self._allocate, burst_bytes)
        self._pattern_key: tuple[str, str, str | None] | None = None
        self._pattern: Pattern
        self._inspector: Inspector
        self._iteration = 0  # timed iterations so far, over the whole run
        self._measured: RankCase  # of the case that runs

    def run(self) -> None:
        """Measure and verify every case, and emit each result at once.

        At the end it emits the ways in which it was done.
        """
        self._run_cases()
        if self._graphs is not None or self._kind_of_buffers != NOT_ASKED:
            graphs = NOT_ASKED if self._graphs is None else self._graphs.used
            self._group.progress.emit({"kind": "ways", **encode(Ways(self._kind_of_buffers, graphs))})

    def _allocate(self, size_bytes: int) -> torch.Tensor:
        memory, self._kind_of_buffers = allocate(self._sweep.buffers, size_bytes, self._group.device)
        return memory

    def _run_cases(self) -> None:
        cases = self._sweep.cases
        for index, case in enumerate(cases):
            if index == 0 or _series_of(case) != _series_of(cases[index - 1]):
                self._series_began = time.perf_counter()
            if self._left_out:
                self._left_out -= 1
                continue
            self._run_case(index, case)

    def _run_case(self, index: int, case: Case) -> None:
        self._measured = RankCase(self._group.rank, index)
        self._group.progress.enter_stage(WARMUP)
        self._prepare_pattern(case)
        self._inspector = Inspector(self._group, self._pattern, case, self._measured)
        predicted_seconds, left = self._warm_up(case)
        while left:
            buffers = self._area.carve(case, left)
            self._measure(case, buffers, predicted_seconds)
            left -= len(buffers)
            self._verify(buffers, self._iteration, last=left == 0)
            self._iteration += len(buffers)
        if self._group.device.type == "cuda" and case.op != BARRIER:
            self._measure_isolated(case, predicted_seconds)
        self._group.progress.emit({"kind": "rank_case", **encode(self._measured)})

    def _prepare_pattern(self, case: Case) -> None:
        """Build the pattern of this operation and dtype, for its largest case, unless it is there already."""
        key = (case.op, case.dtype, case.reduce)
        if key == self._pattern_key:
            return
        if self._pattern_key is not None:
            del self._pattern, self._inspector  # first: the plan has memory for one pattern
        group = self._group
        alike = [other for other in self._sweep.cases if (other.op, other.dtype, other.reduce) == key]
        longest = OPERATIONS[case.op].layout(group.rank, group.world_size).longest
        most = longest * max(other.part_elements(group.world_size) for other in alike)
        self._pattern = Pattern(case.dtype, case.reduce, group.rank, group.world_size, most, group.device)
        self._pattern.prepare(case.op)
        self._pattern_key = key

    # --- warm-up

    def _warm_up(self, case: Case) -> tuple[float | None, int]:
        """The predicted seconds of one operation, and the number of iterations, the same on every rank."""
        (buffers,) = self._area.carve(case, 1)
        sweep = self._sweep
        probes = _PROBES if sweep.warmup is None else sweep.warmup
        if sweep.iterations is None or self._graphs is not None:
            # To learn how long one takes; and a capture must not be what opens connections.
            probes = max(1, probes)
        seconds = [self._run_untimed(case, buffers) for _ in range(probes)]
        if sweep.warmup is not None and sweep.iterations is not None:
            return (_PREDICTION_SLACK * max(seconds) if seconds else None), sweep.iterations
        repeats = self._agree_on_repeats(case, min(seconds))
        if sweep.warmup is None:
            seconds += [self._run_untimed(case, buffers) for _ in range(repeats.warmup - _PROBES)]
        iterations = repeats.iterations if sweep.iterations is None else sweep.iterations
        return _PREDICTION_SLACK * max(seconds), iterations

    def _run_untimed(self, case: Case, buffers: Buffers) -> float:
        """Seconds that one operation took on this rank."""
        self._fill(case, buffers, 0)
        return self._group.measure_seconds(self._call(case, buffers), self._announcement(case))

    def _agree_on_repeats(self, case: Case, operation_seconds: float) -> Repeats:
        """The repeats that rank 0 chooses: ranks that chose their own would fall out of step and hang."""
        chosen = choose_repeats(operation_seconds, in_bounds=self._in_bounds)
        left_out = self._count_left_out(case, operation_seconds) if self._in_bounds else 0
        warmup, iterations, self._left_out = self._group.broadcast_integers(
            [chosen.warmup, chosen.iterations, left_out]
        )
        if self._left_out and self._group.rank == 0:
            report = {"cases": self._left_out, "size_bytes": case.size_bytes, "seconds": operation_seconds}
            self._group.progress.emit({"kind": "left_out", "op": case.op, **report})
        return Repeats(warmup, iterations)

    def _count_left_out(self, case: Case, operation_seconds: float) -> int:
        """How many of the cases that follow this one in its series are left out for want of time."""
        after = self._sweep.cases.index(case) + 1
        rest = takewhile(lambda one: _series_of(one) == _series_of(case), self._sweep.cases[after:])
        sizes = [one.size_bytes for one in rest]
        left_seconds = SERIES_SECONDS - (time.perf_counter() - self._series_began)
        # This case itself is still to be timed.
        return (
            count_left_out(
                sizes, case.size_bytes, operation_seconds, left_seconds - _PER_CASE / 2 * operation_seconds
            )
            if sizes
            else 0
        )

    # --- measuring

    def _measure(self, case: Case, buffers: list[Buffers], predicted_seconds: float | None) -> None:
        """Fill the buffers, then time one operation on each, back to back."""
        group, measured = self._group, self._measured
        group.progress.enter_stage(MEASURE)
        calls = self._fill_all(case, buffers)
        stopwatch = stopwatch_for(group.device, on_host=case.op == BARRIER)
        per_sample = 1 if case.op == BARRIER else operations_per_sample(group.device, case.size_bytes)
        group.barrier()
        before = time.perf_counter()
        if case.op != BARRIER and needs_lead(group.device, len(calls), case.size_bytes):
            group.queue_ahead()
        self._time_all(calls, per_sample, stopwatch, self._announcement(case), predicted_seconds)
        group.synchronize()
        samples, entered = stopwatch.read()
        measured.measure_seconds += time.perf_counter() - before
        measured.times_nanoseconds += tuple(
            sample // min(per_sample, len(calls) - place * per_sample) for place, sample in enumerate(samples)
        )
        measured.entered_nanoseconds += entered
        measured.operations += len(calls)
        for offset, pair in enumerate(buffers):
            # Only where it will be verified: a fault that cannot be detected must not count as fired.
            if self._inspector.looks_at(pair) and group.progress.should_flip_bit(self._iteration + offset):
                as_bits(pair.receive)[len(pair.receive) // 2] ^= 1

    def _time_all(
        self,
        calls: list[Call],
        per_sample: int,
        stopwatch: Stopwatch,
        announcement: Announcement,
        predicted_seconds: float | None,
    ) -> None:
        """Run the calls back to back, with the stopwatch around each sample of them."""
        group = self._group
        for offset, call in enumerate(calls):
            first = offset % per_sample == 0
            last = offset % per_sample == per_sample - 1 or offset == len(calls) - 1
            group.progress.before_iteration(self._iteration + offset)
            group.run(
                call,
                announcement,
                predicted_seconds,
                before=stopwatch.start if first else None,
                after=stopwatch.stop if last else None,
            )

    def _measure_isolated(self, case: Case, predicted_seconds: float | None) -> None:
        """Time single operations after a barrier, from the call on the host to the result on the GPU."""
        (buffers,) = self._area.carve(case, 1)
        call = self._call(case, buffers)
        for round_number in range(self._iteration, self._iteration + ISOLATED_ITERATIONS):
            self._group.progress.enter_stage(MEASURE)
            self._fill(case, buffers, round_number)
            self._group.barrier()
            before = time.perf_counter_ns()
            self._group.run(call, self._announcement(case), predicted_seconds)
            self._group.synchronize()
            self._measured.isolated_nanoseconds += (time.perf_counter_ns() - before,)
            self._verify([buffers], round_number, last=True, isolated=True)

    def _announcement(self, case: Case) -> Announcement:
        return Announcement(case.op, case.dtype, case.part_elements(self._group.world_size))

    def _call(self, case: Case, buffers: Buffers) -> Call:
        return CALLS[case.op](buffers, reduce_op(case.reduce))

    def _fill(self, case: Case, buffers: Buffers, round_number: int) -> None:
        fill(
            buffers,
            OPERATIONS[case.op].layout(self._group.rank, self._group.world_size),
            self._pattern,
            round_number,
        )

    def _fill_all(self, case: Case, buffers: list[Buffers]) -> list[Call]:
        """Fill each pair with the data of its own round; the calls that run the operations on them."""
        before = time.perf_counter()
        for offset, pair in enumerate(buffers):
            self._fill(case, pair, self._iteration + offset)
        self._group.synchronize()
        self._measured.verify_seconds += time.perf_counter() - before
        calls = [self._call(case, pair) for pair in buffers]
        if self._graphs is None or case.op == BARRIER:
            return calls
        return [self._graphs.capture(call) for call in calls]

    # --- verification

    def _verify(
        self, buffers: list[Buffers], round_number: int, *, last: bool, isolated: bool = False
    ) -> None:
        """Compare the timed buffers with what they must hold: all, the last of the case, or none."""
        self._group.progress.enter_stage(VERIFY)
        before = time.perf_counter()
        for offset, pair in enumerate(buffers):
            is_last = last and offset == len(buffers) - 1
            if self._sweep.verify == "every" or (self._sweep.verify == "last" and is_last):
                self._inspector.inspect(pair, round_number + offset, counted=not isolated)
        self._measured.verify_seconds += time.perf_counter() - before
