"""The sweep on one rank: case by case, fill, warm up, time, verify, tell."""

import time
from dataclasses import dataclass
from functools import partial

import torch

from gpudiag.collectives.cases import Case, Sweep
from gpudiag.collectives.operations import OPERATIONS, reduce_op
from gpudiag.collectives.pattern import Pattern, as_bits, sum_pattern, torch_dtype
from gpudiag.collectives.process_group import ProcessGroup
from gpudiag.collectives.repeats import Repeats, choose_repeats
from gpudiag.collectives.results import RankCase, WrongBuffer
from gpudiag.collectives.timing import stopwatch_for
from gpudiag.collectives.verify import compare
from gpudiag.model.codec import encode
from gpudiag.ranks.stages import MEASURE, VERIFY, WARMUP

# A burst of timed operations each has a buffer of its own, filled before and verified after, so
# that nothing but the operation lies between two of them. All buffers of a burst share this much.
_BURST_BYTES = 64 * 1024**2
# Buffers start at cache lines of their own, as an allocator would place them.
_ALIGNMENT_BYTES = 256
# Wrong buffers of one case that are described; the others are only counted.
_DESCRIBED_BUFFERS = 8
# Warm-ups before rank 0 decides on more: the first one may still open connections.
_PROBES = 2
# How far an operation may exceed its estimate before the agent calls it stalled, on top of the
# agent's own factor: the estimate comes from one or two operations.
_PREDICTION_SLACK = 2.0


@dataclass(slots=True)
class _Tally:
    """What is known of the current case so far."""

    times_nanoseconds: list[int]
    verified_iterations: int = 0
    wrong_elements: int = 0
    wrong_buffers: int = 0
    measure_seconds: float = 0.0
    verify_seconds: float = 0.0


class SweepRunner:
    """Runs every case of a sweep on this rank, in step with the other ranks."""

    def __init__(self, group: ProcessGroup, sweep: Sweep) -> None:
        """Set aside the memory that all cases share."""
        self._group = group
        self._sweep = sweep
        self._stopwatch = stopwatch_for(group.device)
        largest = max(case.size_bytes for case in sweep.cases)
        area_bytes = max(_aligned(largest), _BURST_BYTES)
        self._area = torch.empty(area_bytes, dtype=torch.uint8, device=group.device)
        self._pattern_dtype = ""
        self._pattern: Pattern
        self._iteration = 0  # timed iterations so far, over the whole run
        self._tally = _Tally([])

    def run(self) -> None:
        """Measure and verify every case, telling the agent after each."""
        for index, case in enumerate(self._sweep.cases):
            self._run_case(index, case)

    def _run_case(self, index: int, case: Case) -> None:
        self._tally = _Tally([])
        self._group.progress.enter_stage(WARMUP)
        self._prepare_pattern(case)
        predicted_seconds, iterations = self._warm_up(case)
        left = iterations
        while left:
            buffers = self._buffers(case, left)
            self._measure(case, buffers, predicted_seconds)
            left -= len(buffers)
            self._verify(index, case, buffers, last=left == 0)
        self._tell(index)

    def _prepare_pattern(self, case: Case) -> None:
        """Make the pattern of this dtype, for the largest case that has it, unless it is at hand."""
        if case.dtype == self._pattern_dtype:
            return
        most = max(other.elements for other in self._sweep.cases if other.dtype == case.dtype)
        group = self._group
        self._pattern = sum_pattern(case.dtype, group.rank, group.world_size, most, group.device)
        self._pattern_dtype = case.dtype

    def _warm_up(self, case: Case) -> tuple[float | None, int]:
        """The seconds that one operation should take, and how often to time it: the same on every rank."""
        (buffer,) = self._buffers(case, 1)
        sweep = self._sweep
        probes = _PROBES if sweep.warmup is None else sweep.warmup
        if sweep.iterations is None:
            probes = max(1, probes)  # something must say how long one takes
        seconds = [self._run_untimed(case, buffer) for _ in range(probes)]
        if sweep.warmup is not None and sweep.iterations is not None:
            return (_PREDICTION_SLACK * max(seconds) if seconds else None), sweep.iterations
        repeats = self._agree_on_repeats(min(seconds))
        if sweep.warmup is None:
            seconds += [self._run_untimed(case, buffer) for _ in range(repeats.warmup - _PROBES)]
        iterations = repeats.iterations if sweep.iterations is None else sweep.iterations
        return _PREDICTION_SLACK * max(seconds), iterations

    def _run_untimed(self, case: Case, buffer: torch.Tensor) -> float:
        buffer.copy_(self._pattern.contribution(0, case.elements))
        call, reduce = OPERATIONS[case.op].call, reduce_op(case.reduce)
        return self._group.measure_seconds(partial(call, buffer, reduce), case.op, buffer)

    def _agree_on_repeats(self, operation_seconds: float) -> Repeats:
        """What rank 0 chooses: ranks that chose for themselves would part ways and hang."""
        chosen = choose_repeats(operation_seconds)
        warmup, iterations = self._group.broadcast_integers([chosen.warmup, chosen.iterations])
        return Repeats(warmup, iterations)

    def _buffers(self, case: Case, wanted: int) -> list[torch.Tensor]:
        """As many of the wanted buffers for a case as the area holds, one after the other."""
        stride = _aligned(case.size_bytes)
        count = min(wanted, len(self._area) // stride)
        starts = range(0, count * stride, stride)
        dtype = torch_dtype(case.dtype)
        return [self._area[start : start + case.size_bytes].view(dtype) for start in starts]

    def _measure(self, case: Case, buffers: list[torch.Tensor], predicted_seconds: float | None) -> None:
        """Fill the buffers, then time one operation on each, back to back."""
        progress, group, stopwatch = self._group.progress, self._group, self._stopwatch
        progress.enter_stage(MEASURE)
        before = time.perf_counter()
        for offset, buffer in enumerate(buffers):
            buffer.copy_(self._pattern.contribution(self._iteration + offset, case.elements))
        group.synchronize()
        self._tally.verify_seconds += time.perf_counter() - before
        group.barrier()
        call, reduce = OPERATIONS[case.op].call, reduce_op(case.reduce)

        def timed(buffer: torch.Tensor) -> None:
            stopwatch.start()
            call(buffer, reduce)
            stopwatch.stop()

        before = time.perf_counter()
        for offset, buffer in enumerate(buffers):
            progress.before_iteration(self._iteration + offset)
            group.run(partial(timed, buffer), case.op, buffer, predicted_seconds)
        group.synchronize()
        self._tally.times_nanoseconds += stopwatch.read_nanoseconds()
        self._tally.measure_seconds += time.perf_counter() - before
        for offset, buffer in enumerate(buffers):
            if progress.should_flip_bit(self._iteration + offset):
                as_bits(buffer)[case.elements // 2] ^= 1

    def _verify(self, index: int, case: Case, buffers: list[torch.Tensor], *, last: bool) -> None:
        """Compare the timed buffers with what they must hold: all, the last of the case, or none."""
        self._group.progress.enter_stage(VERIFY)
        before = time.perf_counter()
        for offset, buffer in enumerate(buffers):
            is_last = last and offset == len(buffers) - 1
            if self._sweep.verify == "every" or (self._sweep.verify == "last" and is_last):
                self._verify_buffer(index, case, buffer, self._iteration + offset)
        self._iteration += len(buffers)
        self._tally.verify_seconds += time.perf_counter() - before

    def _verify_buffer(self, index: int, case: Case, buffer: torch.Tensor, iteration: int) -> None:
        tally = self._tally
        tally.verified_iterations += 1
        wrong = compare(buffer, self._pattern.expectation(iteration, case.elements))
        if wrong is None:
            return
        tally.wrong_elements += wrong.count
        tally.wrong_buffers += 1
        if tally.wrong_buffers <= _DESCRIBED_BUFFERS:
            found = WrongBuffer(self._group.rank, index, iteration, wrong)
            self._group.progress.emit({"kind": "wrong_buffer", **encode(found)})

    def _tell(self, index: int) -> None:
        tally = self._tally
        told = RankCase(
            rank=self._group.rank,
            case=index,
            times_nanoseconds=tuple(tally.times_nanoseconds),
            verified_iterations=tally.verified_iterations,
            wrong_elements=tally.wrong_elements,
            measure_seconds=tally.measure_seconds,
            verify_seconds=tally.verify_seconds,
        )
        self._group.progress.emit({"kind": "rank_case", **encode(told)})


def _aligned(size_bytes: int) -> int:
    """The size rounded up to the alignment; at least one unit, so that no two buffers coincide."""
    return max(1, -(-size_bytes // _ALIGNMENT_BYTES)) * _ALIGNMENT_BYTES
