"""The ranks of nccl_test_overhead.py: bare loops and nccl-test's sweep, by turns, in one process group."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gpudiag.collectives.cases import Case, Sweep
from gpudiag.collectives.process_group import ProcessGroup, join_process_group
from gpudiag.collectives.sweep import SweepRunner
from gpudiag.ranks.inject import MismatchKind
from gpudiag.ranks.rank.context import Progress, RankContext

WARMUP = 3
_AREA_BYTES = 64 * 1024**2


class Listener:
    """A side channel that keeps what the sweep reports, and passes the rest on where it is open.

    Each sweep counts its collectives from 0; the agent is to see them counted over the whole run.
    """

    def __init__(self, channel: Progress, first_sequence: int, *, is_open: bool) -> None:
        """Pass positions on to `channel` if `is_open`, counted from `first_sequence`."""
        self.times_nanoseconds: list[int] = []
        self.next_sequence = first_sequence
        self._first_sequence = first_sequence
        self._channel = channel if is_open else None

    def enter_stage(self, stage: str) -> None:
        """Pass it on, as the next ones."""
        if self._channel is not None:
            self._channel.enter_stage(stage)

    def before_operation(
        self, sequence: int, op: str, dtype: str, elements: int, predicted_seconds: float | None = None
    ) -> None:
        """Pass it on."""
        if self._channel is not None:
            counted = self._first_sequence + sequence
            self._channel.before_operation(counted, op, dtype, elements, predicted_seconds)

    def after_operation(self, sequence: int, *, queued: bool = False) -> None:
        """Pass it on."""
        if self._channel is not None:
            self._channel.after_operation(self._first_sequence + sequence, queued=queued)
            self.next_sequence = self._first_sequence + sequence + 1

    def note_place(self, file: str, line: int) -> None:
        """Not asked for: collectives report their position."""

    def before_exchange(self, others: Sequence[int]) -> None:
        """Not called: collectives are of all ranks."""

    def before_iteration(self, iteration: int) -> None:
        """Pass it on."""
        if self._channel is not None:
            self._channel.before_iteration(iteration)

    def pop_mismatch(self) -> MismatchKind | None:
        """Never."""
        return None

    def should_flip_bit(self, iteration: int) -> bool:
        """Never."""
        return False

    def emit(self, event: Mapping[str, Any]) -> None:
        """Keep the times of a case."""
        if event["kind"] == "rank_case":
            self.times_nanoseconds = list(event["times_nanoseconds"])


def run(context: RankContext) -> Mapping[str, Any]:
    """Nothing; the times go to the agent round by round."""
    sweeps = Sweeps(context, join_process_group(context, "gloo"))
    context.progress.enter_stage("measure")
    for size in context.arguments["sizes"]:
        variants = make_variants(sweeps, size)
        for number in range(context.arguments["rounds"]):
            order = list(variants) if number % 2 else list(reversed(variants))
            for name in order:
                times = variants[name]()
                labels = {"kind": "times", "size_bytes": size, "variant": name, "round": number}
                context.progress.emit({**labels, "times_nanoseconds": times})
    return {}


def make_variants(sweeps: "Sweeps", size: int) -> dict[str, Callable[[], list[int]]]:
    """What to time for one size, by name."""
    iterations = 40 if size <= 1024**2 else 8 if size <= 16 * 1024**2 else 4
    one = torch.zeros(size // 4)
    area = torch.zeros(_AREA_BYTES // 4)
    stride = max(size // 4, 64)
    many = [area[start : start + size // 4] for start in range(0, len(area), stride)][:iterations]
    many = (many * iterations)[:iterations]
    return {
        "loop": lambda: time_loop([one] * iterations),
        "loop again": lambda: time_loop([one] * iterations),
        "cold loop": lambda: time_loop(many),
        "gpudiag": lambda: sweeps.time(size, iterations, is_open=True),
        "no channel": lambda: sweeps.time(size, iterations, is_open=False),
    }


def time_loop(buffers: list[torch.Tensor]) -> list[int]:
    """Nanoseconds of each all_reduce, back to back."""
    for _ in range(WARMUP):
        dist.all_reduce(buffers[0])
    dist.barrier()
    times = []
    for buffer in buffers:
        before = time.perf_counter_ns()
        dist.all_reduce(buffer)
        times.append(time.perf_counter_ns() - before)
    return times


class Sweeps:
    """nccl-test's own sweep, one size at a time, again and again in one process group."""

    def __init__(self, context: RankContext, group: ProcessGroup) -> None:
        """Use that group for all of them."""
        self._context = context
        self._group = group
        self._next_sequence = 1000  # beyond what joining the group took

    def time(self, size: int, iterations: int, *, is_open: bool) -> list[int]:
        """Nanoseconds of each all_reduce."""
        group = self._group
        listener = Listener(self._context.progress, self._next_sequence, is_open=is_open)
        case = Case("all_reduce", "sum", "float32", size // 4, size, in_place=True, unaligned=False)
        sweep = Sweep("gloo", (case,), iterations, WARMUP, "every")
        SweepRunner(ProcessGroup(group.rank, group.world_size, group.device, listener), sweep).run()
        self._next_sequence = listener.next_sequence
        dist.barrier()  # a rank that went ahead to what is announced would make those behind look idle
        return listener.times_nanoseconds
