"""The sampler's children: one asks NVML and is replaced when it fails, one inspects the rest of the machine.

The host and the kernel log cost milliseconds, GPUtil a quarter of a second of processor time, torch two
seconds: the cheaper, the more often; host and kernel log also soon after an event. While a call into the
driver hangs, nothing else is asked that would call it: each such process would hang as well, where no signal
ends it, and they would be hundreds before the machine is reset.

A child is replaced when it ends, when it falls silent, when a call does not return (a fresh process may
get an answer where an old one waits forever), when GPUs are lost (only nvmlInit finds them again) and
when driver or GPUs change. A successor must report before its predecessor is killed, so that healthy GPUs
are never unwatched. At three children that cannot be killed, no more are started until one has gone.
"""

import asyncio
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any

from gpudiag.linux.child import KilledChildren
from gpudiag.linux.loop_child import ChildProcess, SingleChild
from gpudiag.model.codec import all_missing
from gpudiag.model.device import DeviceView, Snapshot, SourceState, SourceStatus
from gpudiag.model.documents import from_document
from gpudiag.model.host import Machine
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.probe.inventory import Answers
from gpudiag.probe.nvml.answer import NvmlAnswer
from gpudiag.probe.nvml.careful import CALLING
from gpudiag.probe.torch.answer import TorchAnswer
from gpudiag.probe.visibility import read_allocation
from gpudiag.sampler import pauses
from gpudiag.sampler.inspect import DRIVER
from gpudiag.sampler.tiers import FAST_SECONDS

_MAX_STUCK = 3

# --- the machine around the GPUs

_INSPECT = "gpudiag.sampler.inspect"
_GPUTIL, _TORCH = "gputil", "torch"
_HOST_SECONDS = 60.0
_PERIODS = {_GPUTIL: 300.0, _TORCH: 3600.0}  # seconds between two looks, cheapest first
_DEADLINE_SECONDS = 60.0  # of one look; torch has 30 s of them


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was seen around the GPUs, each part as of when it was last asked."""

    host: Snapshot
    uuids: Mapping[str, str | None]
    gputil: Snapshot | None = None
    torch: Snapshot | None = None
    began_at: float = 0.0  # monotonic: when the newest look began

    def answers(self, nvml: NvmlAnswer) -> Answers:
        """The sources' answers, joined with NVML's."""
        host = self.host
        kernel = tuple(status for status in host.sources if status.name not in _ASKED_APART)
        return Answers(
            nvml=nvml,
            machine=host.machine,
            host_status=host.source("host"),
            gputil_status=_status(self.gputil, _GPUTIL),
            gputil_views=_views(self.gputil, _GPUTIL),
            torch=TorchAnswer(
                _status(self.torch, _TORCH),
                NOT_ASKED if self.torch is None else self.torch.torch,
                _views(self.torch, _TORCH),
            ),
            kernel_events=host.kernel_log,
            kernel_statuses=kernel,
        )


_ASKED_APART = ("nvml", "gputil", "torch", "host")


class Inspector(SingleChild):
    """Inspects the machine around the GPUs; `publish` gets each new result."""

    def __init__(
        self,
        publish: Callable[[Surroundings], None],
        environment: Mapping[str, str] | None = None,
        *,
        asks_others: bool = True,
    ) -> None:
        """Start nothing yet: the first `look` does. Without `asks_others` GPUtil and torch are left alone."""
        super().__init__()
        self._asks_others = asks_others
        self.surroundings: Surroundings | None = None
        self._publish = publish
        self._environment = environment
        self._sources: tuple[str, ...] = ()
        self._asked_at = dict.fromkeys(("host", *_PERIODS), -math.inf)
        self._due_at = dict(self._asked_at)
        self._wanted = True
        self._is_outdated = False  # the look in progress began before the GPUs changed
        self._pauses = pauses.PAUSES

    def ask_soon(self) -> None:
        """Have the host and the kernel log read soon, after an event; see `Pauses.after_event`."""
        self._wanted = True

    def ask_at_once(self) -> None:
        """Have them read as soon as the look in progress is over, whenever the last one was."""
        self._wanted = True
        self._asked_at["host"] = -math.inf

    def ask_others_anew(self) -> None:
        """Drop what GPUtil and torch saw, and ask them again: the driver or its GPUs have changed."""
        self._is_outdated = self._child is not None
        if self.surroundings is not None:
            self.surroundings = replace(self.surroundings, gputil=None, torch=None)
        for name in _PERIODS:
            # Not sooner: a GPU that comes and goes must not keep torch loading.
            self._due_at[name] = self._asked_at[name] + self._pauses.after_change

    def look(self, *, driver_hangs: bool = False) -> None:
        """Start a look if one is due; give up one that is late. Call it about every second.

        While the driver hangs only the host and the kernel log are read; what else was seen stays as it was.
        """
        now = monotonic()
        stuck = self.count_stuck()
        if self._child is not None:
            if not self._child.ended and now - self._child.started_at < _DEADLINE_SECONDS:
                return
            self.close()
        if stuck >= _MAX_STUCK:
            return
        self._sources = () if driver_hangs else self._due(now)
        wanted = self._wanted and now - self._asked_at["host"] > self._pauses.after_event
        if not (wanted or self._sources or now - self._asked_at["host"] > _HOST_SECONDS):
            return
        self._wanted = False
        for name in ("host", *self._sources):
            self._asked_at[name] = now
            self._due_at[name] = now + _PERIODS.get(name, 0.0)
        arguments = () if driver_hangs else (",".join((DRIVER, *self._sources)),)
        with suppress(OSError):  # no process can be started: tried again at the next call
            self._child = ChildProcess(_INSPECT, arguments, self._receive, self._environment)

    def _due(self, now: float) -> tuple[str, ...]:
        """The sources due: none before the host was seen, so that it comes fast; then GPUtil, then torch."""
        if self.surroundings is None or not self._asks_others:
            return ()
        return next(((name,) for name in _PERIODS if now > self._due_at[name]), ())

    def _receive(self, child: ChildProcess, message: dict[str, Any]) -> None:
        snapshot = from_document(message["snapshot"])
        before, sources = self.surroundings, () if self._is_outdated else self._sources
        uuids = message["uuids"]
        if uuids is None:  # they were not asked for
            uuids = {} if before is None else before.uuids
        self.surroundings = Surroundings(
            host=snapshot,
            uuids=uuids,
            gputil=snapshot if _GPUTIL in sources else before.gputil if before else None,
            torch=snapshot if _TORCH in sources else before.torch if before else None,
            began_at=child.started_at,
        )
        self._is_outdated = False
        self._publish(self.surroundings)


def _status(snapshot: Snapshot | None, name: str) -> SourceStatus:
    return SourceStatus(name, SourceState.NOT_ASKED) if snapshot is None else snapshot.source(name)


def _views(snapshot: Snapshot | None, name: str) -> tuple[DeviceView, ...]:
    return () if snapshot is None else tuple(view for view in snapshot.views if view.source == name)


def unknown_surroundings(environment: Mapping[str, str], now: datetime) -> Surroundings:
    """The surroundings where the host has not answered yet."""
    why = Missing(MissingReason.TIMED_OUT, "the host's files gave no answer yet")
    hostname = os.uname().nodename
    machine = all_missing(
        Machine, why, hostname=hostname, container=None, allocation=read_allocation(environment)
    )
    host = SourceStatus("host", SourceState.TIMED_OUT, why.detail)
    snapshot = all_missing(
        Snapshot,
        why,
        host=hostname,
        taken_at=now,
        simulated=None,
        sources=(host,),
        devices=(),
        views=(),
        disagreements=(),
        machine=machine,
    )
    return Surroundings(snapshot, {})


# --- NVML

_CHILD = "gpudiag.sampler.child"
_LOOK_SECONDS = 0.25
_CALM_SECONDS = 0.5  # between two looks at a child that runs, without a successor
_SILENT_SECONDS = 2.5  # beyond its own interval; then the child itself is stuck
_WEDGED_SECONDS = 4.0  # a call that takes longer is given up
_LOST_SOON = 60.0
_SUCCESSOR_SECONDS = 3.0  # a successor that has not reported by then is killed
_STEADY_SECONDS = 20.0  # a child that lived that long was healthy


@dataclass(frozen=True, slots=True)
class Trouble:
    """Trouble in the picture that a fresh child might cure."""

    longest_silence_seconds: float = 0.0  # of a GPU, or of nvmlInit
    lost_for_seconds: float | None = None


class Supervisor:
    """Runs one child of the sampler at a time, or two while one replaces the other."""

    def __init__(
        self,
        receive: Callable[[dict[str, Any]], None],
        trouble: Callable[[], Trouble],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Pass every message of the current child to `receive`; `trouble` returns what is wrong now."""
        self.restarts = 0  # children that ended or were given up; not those replaced to look for lost GPUs
        self.generation = 0  # children that were replaced, for whatever reason
        self.stuck = 0
        self.cannot_start: str | None = None  # why no child runs
        self._hand_on = receive
        self._trouble = trouble
        self._environment = environment
        self._current: ChildProcess | None = None
        self._successor: ChildProcess | None = None
        self._held: list[dict[str, Any]] = []  # the successor's messages
        self._killed = KilledChildren()
        self._pace: dict[str, Any] = {"interval": FAST_SECONDS, "paused": False}
        self._ends_in_a_row = 0
        self._failed = False  # the current child's last message was that NVML failed
        self._start_at = 0.0
        self._renewed_at = 0.0
        self._called: tuple[int, str] | None = None  # by a child that announces its calls, after a crash
        self._spared: list[tuple[int, str, str]] | None = (
            None  # calls left out, and why; None: none has crashed
        )
        self._gives_up = False  # the successor was started because a call does not return
        self._pauses = pauses.PAUSES

    def set_pace(self, interval_seconds: float, *, paused: bool = False) -> None:
        """Set how often the child ticks; a paused one asks nothing."""
        pace = {"interval": interval_seconds, "paused": paused}
        if pace != self._pace:
            faster = paused is False and interval_seconds < self._pace["interval"]
            self._pace = pace
            for child in (self._current, self._successor):
                if child is not None:
                    child.send({**pace, "now": faster})

    def read_now(self) -> None:
        """Have the child read the GPUs at once, out of turn; the pace stays."""
        if self._current is not None:
            self._current.send({"now": True})

    async def run(self) -> None:
        """Keep a child running until cancelled, then kill it."""
        try:
            while True:
                self._look(monotonic())
                is_calm = self._successor is None and self._current is not None and not self._current.ended
                await asyncio.sleep(_CALM_SECONDS if is_calm else _LOOK_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        """Kill the children."""
        for child in (self._current, self._successor):
            if child is not None:
                self._abandon(child)
        self._current = self._successor = None
        self.count_stuck()

    def count_stuck(self) -> int:
        """The number of killed children that have not ended yet; the others are reaped."""
        self.stuck = self._killed.count()
        return self.stuck

    def _look(self, now: float) -> None:
        self.count_stuck()
        if self._current is not None and self._is_silent(self._current, now):
            self._abandon(self._current)
        if self._current is not None and self._current.ended:
            self._note_end(self._current, now)
        if self._successor is not None:
            self._look_at_successor(self._successor, now)
        if self._current is None and self._successor is None and now >= self._start_at:
            self._current = self._start(self._receive)
        elif self._current is not None and self._successor is None and not self._pace["paused"]:
            self._renew(now)

    def _is_silent(self, child: ChildProcess, now: float) -> bool:
        pace = float(self._pace["interval"])
        return not child.ended and now - child.last_message_at > pace + _SILENT_SECONDS

    def _note_end(self, child: ChildProcess, now: float) -> None:
        self._abandon(child)
        self._current = None
        if crash := child.crash():
            self._spared = self._spared or []
            if self._called is not None:
                self._spared.append((*self._called, crash))
            self._called = None
        self.restarts += 1
        self.generation += 1
        if child.last_message_at == child.started_at and self._ends_in_a_row > 0:
            self.cannot_start = (
                f"the sampler's process ends before its first message ({child.how_it_ended()}): "
                "`python -m gpudiag.sampler.child` shows why"
            )
        self._ends_in_a_row = 0 if now - child.started_at > _STEADY_SECONDS else self._ends_in_a_row + 1
        restart = self._pauses.restart
        step = min(self._ends_in_a_row, len(restart) - 1)
        if crash and self._spared:  # it has learned what to leave out
            step = 0
        self._start_at = now + (self._pauses.failed if self._failed else restart[step])

    def _renew(self, now: float) -> None:
        """Start a successor where a fresh process might cure what the picture shows."""
        trouble, since = self._trouble(), now - self._renewed_at
        waited = since > self._pauses.between_successors
        wedged = trouble.longest_silence_seconds > _WEDGED_SECONDS and waited
        if not wedged and not _looks_for_lost(trouble, since, self._pauses):
            return
        self._renewed_at = now
        self._gives_up = wedged
        self._held = []
        self._successor = self._start(self._receive_from_successor)

    def _look_at_successor(self, child: ChildProcess, now: float) -> None:
        answered = any(message["kind"] in ("tick", "failed") for message in self._held)
        late = now - child.started_at > _SUCCESSOR_SECONDS
        if not (answered or late or child.ended):
            return
        self._successor = None
        if answered or (late and self._current is None):
            if self._current is not None:
                self._abandon(self._current)
                self.restarts += self._gives_up
                self.generation += 1
            self._current = child
            for message in self._held:
                self._receive(child, message)
        else:
            self._abandon(child)
        self._held = []

    def _start(self, receive: Callable[[ChildProcess, dict[str, Any]], None]) -> ChildProcess | None:
        if self.stuck >= _MAX_STUCK:
            return None
        try:
            careful = () if self._spared is None else (json.dumps(self._spared),)
            child = ChildProcess(_CHILD, careful, receive, self._environment)
        except OSError as error:  # no more processes or descriptors: tried again at the next look
            self.cannot_start = f"the sampler's process cannot be started: {error.strerror or error}"
            return None
        child.send(self._pace)
        return child

    def _receive(self, _child: ChildProcess, message: dict[str, Any]) -> None:
        if message["kind"] == CALLING:
            self._called = (message["index"], message["call"])
            return
        self._failed = message["kind"] == "failed"
        self.cannot_start = None
        self._hand_on(message)

    def _receive_from_successor(self, child: ChildProcess, message: dict[str, Any]) -> None:
        if child is self._current:
            self._receive(child, message)
        else:
            self._held.append(message)

    def _abandon(self, child: ChildProcess) -> None:
        child.abandon()
        self._killed.add(child)


def _looks_for_lost(trouble: Trouble, since: float, at: pauses.Pauses) -> bool:
    """Whether it is time to look for a lost GPU again: often at first, then less often."""
    if trouble.lost_for_seconds is None:
        return False
    return since > (at.lost if trouble.lost_for_seconds < _LOST_SOON else at.lost_later)
