"""A rank's side of the side channel: says where the rank is, and injects the faults meant for it."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from gpudiag.ranks.events import EventKind, EventWriter
from gpudiag.ranks.inject import Fault, FaultKind
from gpudiag.ranks.position import PositionWriter


class RankProgress:
    """The `Progress` that a rank's entry is given: shared memory, an event file, and its faults."""

    def __init__(self, position: PositionWriter, events: EventWriter, faults: tuple[Fault, ...]) -> None:
        """Write to `position` and `events`; `faults` are those of this rank alone."""
        self._position = position
        self._events = events
        self._pending = list(faults)

    def enter_stage(self, stage: str) -> None:
        """Publish the stage, then do what an injected fault asks for in it."""
        caller = sys._getframe(1)
        self._position.enter_stage(stage, (caller.f_code.co_filename, caller.f_lineno))
        for fault in tuple(self._pending):
            if fault.stage == stage:
                self._pending.remove(fault)
                self._fire(fault)

    def before_operation(
        self, sequence: int, op: str, dtype: str, elements: int, predicted_seconds: float | None = None
    ) -> None:
        """Publish the collective before the rank enters it."""
        caller = sys._getframe(1)
        place = (caller.f_code.co_filename, caller.f_lineno)
        self._position.enter_operation(sequence, (op, dtype, elements, predicted_seconds), place)

    def after_operation(self, sequence: int) -> None:
        """Publish that the rank is out of the collective."""
        self._position.leave_operation(sequence)

    def before_iteration(self, iteration: int) -> None:
        """Publish the iteration, then do what an injected fault asks for in it."""
        self._position.enter_iteration(iteration)
        for fault in tuple(self._pending):
            if fault.kind is FaultKind.SLOW:
                self._delay(fault)
            elif fault.iteration == iteration and fault.kind is not FaultKind.BITFLIP:
                self._pending.remove(fault)
                self._fire(fault)

    def should_flip_bit(self, iteration: int) -> bool:
        """Whether an injected fault wants a bit of this iteration's output flipped; says so once."""
        for fault in self._pending:
            if fault.kind is FaultKind.BITFLIP and fault.iteration == iteration:
                self._pending.remove(fault)
                self._announce(fault)
                return True
        return False

    def emit(self, event: Mapping[str, Any]) -> None:
        """Append the event to this rank's file."""
        self._events.write(EventKind.EMITTED, event)

    def _delay(self, fault: Fault) -> None:
        if fault.iteration is None:  # the first time
            self._announce(fault)
            self._pending[self._pending.index(fault)] = Fault(
                fault.kind, fault.rank, iteration=0, delay_seconds=fault.delay_seconds
            )
        time.sleep(fault.delay_seconds)

    def _fire(self, fault: Fault) -> None:
        self._announce(fault)
        if fault.kind is FaultKind.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind is FaultKind.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _announce(self, fault: Fault) -> None:
        """Say that the fault happens, before it does: afterwards may be too late."""
        self._events.write(EventKind.FAULT, {"specification": fault.specification})
