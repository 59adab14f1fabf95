"""A rank without others, in this process: what a sweep does, without starting anything."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gpudiag.collectives import rank_main
from gpudiag.collectives.cases import Sweep
from gpudiag.collectives.results import RankCase, WrongBuffer
from gpudiag.model.codec import decode, encode
from gpudiag.ranks.inject import MismatchKind
from gpudiag.ranks.rank.context import RankContext


@dataclass
class RecordingProgress:
    """A side channel that remembers all it is told, and flips the bits that it is asked to."""

    flip_iterations: tuple[int, ...] = ()
    preempted_seconds: float = 0.0  # the processor is away for so long after each announcement
    stages: list[str] = field(default_factory=list)
    operations: list[tuple[int, str]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    announced_nanoseconds: list[int] = field(default_factory=list)

    def enter_stage(self, stage: str) -> None:
        self.stages.append(stage)

    def before_operation(
        self, sequence: int, op: str, dtype: str, elements: int, predicted_seconds: float | None = None
    ) -> None:
        self.operations.append((sequence, op))
        time.sleep(self.preempted_seconds)
        self.announced_nanoseconds.append(time.monotonic_ns())

    def after_operation(self, sequence: int, *, queued: bool = False) -> None:
        self.left.append(sequence)

    def before_iteration(self, iteration: int) -> None:
        self.iterations.append(iteration)

    def pop_mismatch(self) -> MismatchKind | None:
        return None

    def should_flip_bit(self, iteration: int) -> bool:
        return iteration in self.flip_iterations

    def emit(self, event: Mapping[str, Any]) -> None:
        self.events.append(json.loads(json.dumps(event)))

    def cases(self) -> list[RankCase]:
        """What the rank told about each case."""
        return [decode(RankCase, event) for event in self.events if event["kind"] == "rank_case"]

    def wrong_buffers(self) -> list[WrongBuffer]:
        """The wrong buffers that the rank described."""
        return [decode(WrongBuffer, event) for event in self.events if event["kind"] == "wrong_buffer"]


def run_sweep(
    sweep: Sweep,
    directory: Path,
    *,
    flip_iterations: tuple[int, ...] = (),
    preempted_seconds: float = 0.0,
) -> RecordingProgress:
    """What the only rank of a world of one told while it ran that sweep on gloo."""
    progress = RecordingProgress(flip_iterations, preempted_seconds)
    context = RankContext(
        rank=0,
        local_rank=0,
        world_size=1,
        local_world_size=1,
        init_method=f"file://{directory}/rendezvous",
        rendezvous_timeout_seconds=20.0,
        operation_timeout_seconds=20.0,
        arguments=encode(sweep),
        progress=progress,
    )
    try:
        rank_main.run(context)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return progress
