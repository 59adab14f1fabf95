"""What every active test is given: device, ranks kept in step, a way to emit results, and the clock.

The process group is gloo's, on CPU tensors: it carries nothing but barriers.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from gpudiag.model.active import ActivePlan
from gpudiag.model.codec import encode
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.ranks.rank.context import Progress, RankContext
from gpudiag.ranks.stages import INIT, RENDEZVOUS

# --- steps that all ranks take together

_T = TypeVar("_T")


class LockStep:
    """One rank's place among the ranks, in an open process group."""

    def __init__(self, context: RankContext) -> None:
        """Join the other ranks, and return when all are there."""
        self.rank = context.rank
        self.world_size = context.world_size
        self.progress: Progress = context.progress
        self._sequence = 0
        self._token = torch.zeros(1)
        self.progress.enter_stage(RENDEZVOUS)
        self.progress.enter_stage(INIT)
        dist.init_process_group(
            "gloo",
            init_method=context.init_method,
            rank=context.rank,
            world_size=context.world_size,
            timeout=timedelta(seconds=context.operation_timeout_seconds),
        )
        self.barrier()

    def step(self, name: str, call: Callable[[], _T], elements: int = 0) -> _T:
        """What `call` returns, announced as `name` before it starts; without elements, this rank's work."""
        sequence = self._sequence
        self._sequence += 1
        self.progress.before_operation(sequence, name, "", elements)
        result = call()
        self.progress.after_operation(sequence)
        return result

    def barrier(self) -> None:
        """Return once every rank is here."""
        self.step("barrier", lambda: dist.all_reduce(self._token), self._token.numel())


# --- what a test is given

WARMUP_ITERATIONS = 3
# Calls between two of CUDA's events last about as long as this: an event costs some microseconds of the GPU's
# time.
_BURST_SECONDS = 0.02
_MOST_IN_BURST = 256  # the queue of a stream holds some 1,000 kernels, and so two bursts
_BURSTS_QUEUED = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """How long each iteration of one operation took; the best also counts what ran while the GPU settled.

    `began_seconds` and `ended_seconds` are of `time.monotonic`.
    """

    iterations: int
    p50_seconds: float
    best_seconds: float
    began_seconds: float
    ended_seconds: float


class Bench:
    """One rank's device, group and clock for the active tests.

    `step` announces each step, which all ranks go through in one order: so one that hangs is known from those
    that wait for it.
    """

    def __init__(
        self,
        group: LockStep,
        plan: ActivePlan,
        device: torch.device,
        uuid: Reading[str],
        numa_node: Reading[int] = NOT_ASKED,
    ) -> None:
        """Work on `device`, in step with the group; `numa_node` is what this process is bound to."""
        self.group = group
        self.plan = plan
        self.device = device
        self.device_uuid = uuid
        self.numa_node = numa_node
        self.rank = group.rank
        self.world_size = group.world_size
        self._iteration = 0

    @property
    def is_cuda(self) -> bool:
        """Whether the rank works on a GPU."""
        return self.device.type == "cuda"

    def step(self, name: str, call: Callable[[], _T]) -> _T:
        """What `call` returns, once the device has finished it; announced as `name` before it starts."""

        def work() -> _T:
            result = call()
            self.synchronize()
            return result

        return self.group.step(name, work)

    def in_turn(self, name: str, call: Callable[[], None]) -> None:
        """Run `call` on one rank after the other while the rest wait."""
        for rank in range(self.world_size):
            self.step(name, call if rank == self.rank else _nothing)
            self.group.barrier()

    def together(self, name: str, call: Callable[[], None]) -> None:
        """Run `call` on every rank at the same time."""
        self.group.barrier()
        self.step(name, call)
        self.group.barrier()

    def synchronize(self) -> None:
        """Return once the device has done all that was queued."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def time(
        self,
        call: Callable[[], Any],
        *,
        at_least_seconds: float,
        settle_seconds: float = 0.0,
        at_least: int = 5,
    ) -> Timing:
        """The timing of `call`, repeated for at least that long and that often, after a warm-up.

        A GPU gets `settle_seconds` of load before: a power limit takes tenths of a second to slow it down.
        """
        for _ in range(WARMUP_ITERATIONS):
            call()
        self.synchronize()
        if self.is_cuda:
            return self._time_on_gpu(call, at_least_seconds, settle_seconds, at_least)
        seconds: list[float] = []
        began = time.monotonic()
        while len(seconds) < at_least or time.monotonic() < began + at_least_seconds:
            before = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - before)
        return Timing(len(seconds), statistics.median(seconds), min(seconds), began, time.monotonic())

    def _time_on_gpu(
        self, call: Callable[[], Any], at_least_seconds: float, settle_seconds: float, at_least: int
    ) -> Timing:
        """By CUDA's events around bursts of calls, of which one always waits: the GPU never waits for us."""
        events = deque([_record()])
        call()
        events.append(_record())
        once = _seconds_of_first(events)
        burst = min(_MOST_IN_BURST, max(1, round(_BURST_SECONDS / max(once, 1e-6))))
        events = deque([_record()])  # the GPU has waited for this process since the other
        settling: list[float] = []
        seconds: list[float] = []
        started = time.monotonic()
        began = started if settle_seconds == 0 else math.inf
        ended = started
        while len(seconds) < at_least or ended < began + at_least_seconds:
            while len(events) <= _BURSTS_QUEUED:
                for _ in range(burst):
                    call()
                events.append(_record())
            lasted = _seconds_of_first(events) / burst
            ended = time.monotonic()
            (settling if began > ended else seconds).append(lasted)
            if began > ended and ended >= started + settle_seconds:
                began = ended
        self.synchronize()
        return Timing(
            len(seconds) * burst, statistics.median(seconds), min((*settling, *seconds)), began, ended
        )

    def corrupt(self, tensor: torch.Tensor) -> None:
        """Flip one bit in the middle of `tensor` where an injected fault asks for it now."""
        progress = self.group.progress
        progress.before_iteration(self._iteration)
        if progress.should_flip_bit(self._iteration):
            tensor.view(torch.uint8).flatten()[tensor.nbytes // 2] ^= 1
        self._iteration += 1

    def emit(self, kind: str, result: Any) -> None:
        """Send the agent one result at once: it is kept if the rank dies later."""
        self.group.progress.emit({"kind": kind, **encode(result)})

    def seconds(self, on_gpu: float, on_cpu: float) -> float:
        """The seconds to measure on this kind of device."""
        return on_gpu if self.is_cuda else on_cpu


def _record() -> torch.cuda.Event:
    """An event in the current stream of this rank's GPU."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _seconds_of_first(events: "deque[torch.cuda.Event]") -> float:
    """Seconds between the first two events, once the GPU has reached them; the first is taken away."""
    first = events.popleft()
    events[0].synchronize()
    return float(first.elapsed_time(events[0])) / 1000


def random_bytes(size_bytes: int, device: torch.device, seed: int = 1) -> torch.Tensor:
    """Bytes without a pattern: zeros would be compressed on the way, and copied too fast."""
    generator = torch.Generator(device).manual_seed(seed)
    # Eight at a time: one by one they take five times as long to make.
    words = -(-size_bytes // 8)
    made = torch.randint(-(2**63), 2**63 - 1, (words,), dtype=torch.int64, device=device, generator=generator)
    return made.view(torch.uint8)[:size_bytes]


def differing_bytes(found: torch.Tensor, expected: torch.Tensor) -> int:
    """How many bytes differ; both tensors are bytes on one device."""
    whole = found.nbytes // 8 * 8
    words = (tensor[:whole].view(torch.int64) for tensor in (found, expected))
    if torch.equal(*words) and torch.equal(found[whole:], expected[whole:]):
        return 0
    return int((found != expected).sum())


def _nothing() -> None:
    """Do nothing: it is another rank's turn."""
