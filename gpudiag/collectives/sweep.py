"""The sweep on one rank, case by case: fill, warm up, time, verify, emit."""

import time

from gpudiag.collectives.buffers import BufferArea, Buffers, fill
from gpudiag.collectives.cases import Case, Sweep
from gpudiag.collectives.inspection import Inspector, Tally
from gpudiag.collectives.operations import CALLS, Call, reduce_op
from gpudiag.collectives.pattern import Pattern, as_bits
from gpudiag.collectives.process_group import Announcement, ProcessGroup
from gpudiag.collectives.timing import (
    ISOLATED_ITERATIONS,
    Repeats,
    Stopwatch,
    choose_repeats,
    needs_lead,
    operations_per_sample,
    stopwatch_for,
)
from gpudiag.model.codec import encode
from gpudiag.model.operation import BARRIER, OPERATIONS
from gpudiag.ranks.stages import MEASURE, VERIFY, WARMUP

# Each timed operation of a burst has its own buffers, filled before and verified after, so that the
# operations run back to back. All buffers of a burst share this much memory: on a GPU several times its
# L2 cache, so that no operation finds its data there.
_BURST_BYTES = {"cpu": 64 * 1024**2, "cuda": 256 * 1024**2}
# Warm-ups before rank 0 decides on more: the first one may still open connections.
_PROBES = 2
# How far an operation may exceed its estimate before the agent calls it stalled, on top of the
# agent's own factor: the estimate comes from one or two operations.
_PREDICTION_SLACK = 2.0


class SweepRunner:
    """Runs every case of a sweep on this rank, in step with the other ranks."""

    def __init__(self, group: ProcessGroup, sweep: Sweep) -> None:
        """Allocate the memory that all cases share."""
        self._group = group
        self._sweep = sweep
        burst_bytes = _BURST_BYTES[group.device.type]
        self._area = BufferArea(sweep.cases, group.rank, group.world_size, group.device, burst_bytes)
        self._pattern_key: tuple[str, str, str | None] | None = None
        self._pattern: Pattern
        self._inspector: Inspector
        self._iteration = 0  # timed iterations so far, over the whole run
        self._tally = Tally()

    def run(self) -> None:
        """Measure and verify every case, and emit each result at once."""
        for index, case in enumerate(self._sweep.cases):
            self._run_case(index, case)

    def _run_case(self, index: int, case: Case) -> None:
        self._tally = Tally()
        self._group.progress.enter_stage(WARMUP)
        self._prepare_pattern(case)
        self._inspector = Inspector(self._group, self._pattern, index, case, self._tally)
        predicted_seconds, left = self._warm_up(case)
        while left:
            buffers = self._area.carve(case, left)
            self._measure(case, buffers, predicted_seconds)
            left -= len(buffers)
            self._verify(buffers, self._iteration, last=left == 0)
            self._iteration += len(buffers)
        if self._group.device.type == "cuda" and case.op != BARRIER:
            self._measure_isolated(case, predicted_seconds)
        told = self._tally.freeze(self._group.rank, index)
        self._group.progress.emit({"kind": "rank_case", **encode(told)})

    def _prepare_pattern(self, case: Case) -> None:
        """Build the pattern of this operation and dtype, for its largest case, unless it is there already."""
        key = (case.op, case.dtype, case.reduce)
        if key == self._pattern_key:
            return
        if self._pattern_key is not None:
            del self._pattern, self._inspector  # first: the plan has memory for one pattern
        group = self._group
        alike = [other for other in self._sweep.cases if (other.op, other.dtype, other.reduce) == key]
        most = max(other.part_elements(group.world_size) for other in alike)
        self._pattern = Pattern(case.dtype, case.reduce, group.rank, group.world_size, most, group.device)
        self._pattern.prepare(case.op)
        self._pattern_key = key

    # --- warm-up

    def _warm_up(self, case: Case) -> tuple[float | None, int]:
        """The predicted seconds of one operation, and the number of iterations, the same on every rank."""
        (buffers,) = self._area.carve(case, 1)
        sweep = self._sweep
        probes = _PROBES if sweep.warmup is None else sweep.warmup
        if sweep.iterations is None:
            probes = max(1, probes)  # to learn how long one takes
        seconds = [self._run_untimed(case, buffers) for _ in range(probes)]
        if sweep.warmup is not None and sweep.iterations is not None:
            return (_PREDICTION_SLACK * max(seconds) if seconds else None), sweep.iterations
        repeats = self._agree_on_repeats(min(seconds))
        if sweep.warmup is None:
            seconds += [self._run_untimed(case, buffers) for _ in range(repeats.warmup - _PROBES)]
        iterations = repeats.iterations if sweep.iterations is None else sweep.iterations
        return _PREDICTION_SLACK * max(seconds), iterations

    def _run_untimed(self, case: Case, buffers: Buffers) -> float:
        """Seconds that one operation took on this rank."""
        self._fill(case, buffers, 0)
        return self._group.measure_seconds(self._call(case, buffers), self._announcement(case))

    def _agree_on_repeats(self, operation_seconds: float) -> Repeats:
        """The repeats that rank 0 chooses: ranks that chose their own would fall out of step and hang."""
        chosen = choose_repeats(operation_seconds)
        warmup, iterations = self._group.broadcast_integers([chosen.warmup, chosen.iterations])
        return Repeats(warmup, iterations)

    # --- measuring

    def _measure(self, case: Case, buffers: list[Buffers], predicted_seconds: float | None) -> None:
        """Fill the buffers, then time one operation on each, back to back."""
        group, tally = self._group, self._tally
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
        samples = stopwatch.read()
        tally.measure_seconds += time.perf_counter() - before
        tally.times_nanoseconds += [
            sample // min(per_sample, len(calls) - place * per_sample)
            for place, sample in enumerate(samples.nanoseconds)
        ]
        tally.entered_nanoseconds += samples.entered_nanoseconds
        tally.operations += len(calls)
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
            self._tally.isolated_nanoseconds.append(time.perf_counter_ns() - before)
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
        self._tally.verify_seconds += time.perf_counter() - before
        return [self._call(case, pair) for pair in buffers]

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
        self._tally.verify_seconds += time.perf_counter() - before
