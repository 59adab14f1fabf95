"""The rank's end of the side channel: publishes where the rank is, and injects the faults meant for it."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType
from typing import Any

from gpudiag.ranks.event_log import EventKind, EventWriter
from gpudiag.ranks.inject import Fault, FaultKind, MismatchKind
from gpudiag.ranks.position import Place
from gpudiag.ranks.rank.arrivals import ArrivalRecorder
from gpudiag.ranks.rank.board import PositionWriter

_HEADROOM_BYTES = 64 << 20  # what the rank may still allocate before it fails
_BLOCK_BYTES = 8 << 20

_CONTEXT_MANAGERS = contextmanager.__code__.co_filename


def kill_self() -> None:
    """End this process by SIGKILL, as the OOM killer and batch systems do."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self() -> None:
    """Stop this process by SIGSTOP, until another process sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stay_out() -> None:
    """Sleep forever, like a rank that took a different branch from the others."""
    while True:
        time.sleep(3600)


def run_out_of_memory() -> None:
    """Allocate until memory runs out: on the GPU if this process uses one, else up to a limit set just above.

    Raises:
        MemoryError: always, on a CPU.
        torch.OutOfMemoryError: always, on a GPU.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        _exhaust_gpu(torch)
    _exhaust_host()


def _exhaust_gpu(torch: Any) -> None:
    blocks = []
    while True:
        blocks.append(torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device="cuda"))


def _exhaust_host() -> None:
    """Run into a memory limit of this process alone, so that the machine's other users keep their memory."""
    used_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    allowed = used_pages * resource.getpagesize() + _HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (allowed, limits[1]))
    blocks = []
    try:
        while True:
            blocks.append(bytearray(_BLOCK_BYTES))
    except MemoryError:
        raise MemoryError(
            f"no more memory beyond the {allowed >> 20} MiB that this process may map"
        ) from None
    finally:
        blocks.clear()
        resource.setrlimit(resource.RLIMIT_AS, limits)


_OWN_FOLDER = __file__.rpartition("/rank/")[0] + "/"
_DEEDS: Mapping[FaultKind, Callable[[], None]] = MappingProxyType(
    {
        FaultKind.KILL: kill_self,
        FaultKind.STOP: stop_self,
        FaultKind.SKIP: stay_out,
        FaultKind.OOM: run_out_of_memory,
    }
)


def _who_wants_it(announcer: FrameType) -> FrameType:
    """The frame that called the announcing file for a collective; a line inside a wrapper would say nothing.

    The announcer itself if it has no such caller, because it is the rank's entry.
    """
    wrappers = (announcer.f_code.co_filename, _CONTEXT_MANAGERS)
    caller = announcer.f_back
    while caller is not None and caller.f_code.co_filename in wrappers:
        caller = caller.f_back
    if caller is None or caller.f_code.co_filename.startswith(_OWN_FOLDER):
        return announcer
    return caller


class RankProgress:
    """The `Progress` that a rank's entry is given: shared memory, an event file, and its faults."""

    def __init__(self, position: PositionWriter, events: EventWriter, faults: tuple[Fault, ...]) -> None:
        """Write to `position` and `events`; `faults` are only those of this rank."""
        self.arrivals = ArrivalRecorder()
        self._position = position
        self._events = events
        self._code: CodeType | None = None  # whose instruction announced the last collective
        self._instruction = -1
        self._place: Place = ("", 0)
        self._pending = list(faults)
        self._slowed: list[Fault] = []
        self._mismatch: MismatchKind | None = None

    def enter_stage(self, stage: str) -> None:
        """Publish the stage, then inject the faults due in it."""
        due = [fault for fault in self._pending if fault.stage == stage]
        self._fire([fault for fault in due if fault.kind is FaultKind.SKIP])  # first: the rank never enters
        caller = sys._getframe(1)
        self._position.enter_stage(stage, (caller.f_code.co_filename, caller.f_lineno))
        self._fire([fault for fault in due if fault.kind is not FaultKind.SKIP])

    def before_operation(
        self, sequence: int, op: str, dtype: str, elements: int, predicted_seconds: float | None = None
    ) -> None:
        """Publish the collective before the rank enters it."""
        caller = _who_wants_it(sys._getframe(1))
        code, instruction = caller.f_code, caller.f_lasti
        if code is not self._code or instruction != self._instruction:  # its line takes long to look up
            self._code, self._instruction = code, instruction
            self._place = (code.co_filename, caller.f_lineno)
        announced = (op, dtype, elements, predicted_seconds)
        now_ns = self._position.enter_operation(sequence, announced, self._place)
        self.arrivals.arrive(now_ns)

    def after_operation(self, sequence: int, *, queued: bool = False) -> None:
        """Publish that the rank is out of the collective."""
        self.arrivals.leave(self._position.leave_operation(sequence), queued=queued)

    def before_iteration(self, iteration: int) -> None:
        """Publish the iteration, then inject the faults due in it."""
        self._position.enter_iteration(iteration)
        if self._pending:
            due = [fault for fault in self._pending if fault.iteration == iteration]
            self._fire([fault for fault in due if fault.kind is not FaultKind.BITFLIP])
            self._delay()
        self.arrivals.start_iteration(iteration)

    def before_exchange(self, others: Sequence[int]) -> None:
        """Delay what this rank exchanges with those ranks, if a fault says so."""
        self._delay(others)

    def note_place(self, file: str, line: int) -> None:
        """Publish the line that the rank is at."""
        self._position.note_place((file, line))

    def pop_mismatch(self) -> MismatchKind | None:
        """How an injected fault wants this rank's next collective to differ; returned once."""
        mismatch, self._mismatch = self._mismatch, None
        return mismatch

    def should_flip_bit(self, iteration: int) -> bool:
        """Whether an injected fault wants a bit of this iteration's output flipped; True once."""
        for fault in self._pending:
            if fault.kind is FaultKind.BITFLIP and fault.iteration == iteration:
                self._pending.remove(fault)
                self._announce(fault)
                return True
        return False

    def emit(self, event: Mapping[str, Any]) -> None:
        """Append the event to this rank's event file."""
        self._events.write(EventKind.EMITTED, event)

    def _delay(self, others: Sequence[int] = ()) -> None:
        for fault in self._pending:
            if fault.kind is FaultKind.SLOW and (fault.other_rank is None or fault.other_rank in others):
                if fault not in self._slowed:
                    self._slowed.append(fault)
                    self._announce(fault)
                time.sleep(fault.delay_seconds)

    def _fire(self, faults: list[Fault]) -> None:
        for fault in faults:
            self._pending.remove(fault)
            self._announce(fault)
            if fault.kind is FaultKind.MISMATCH:
                self._mismatch = fault.mismatch
            else:
                _DEEDS[fault.kind]()

    def _announce(self, fault: Fault) -> None:
        """Record the fault before it happens: afterwards may be too late."""
        self._events.write(EventKind.FAULT, {"specification": fault.specification})
