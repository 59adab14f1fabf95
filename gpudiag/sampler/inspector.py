"""The machine around the GPUs, inspected from time to time by a short-lived child.

The host and the kernel log cost milliseconds, GPUtil a quarter of a second of processor time, torch two
seconds: the cheaper, the more often; host and kernel log also soon after an event.
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any

from gpudiag.model.codec import all_missing, from_document
from gpudiag.model.device import DeviceView, Snapshot, SourceState, SourceStatus
from gpudiag.model.host import Machine
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.probe.inventory import Answers
from gpudiag.probe.nvml.answer import NvmlAnswer
from gpudiag.probe.torch.answer import TorchAnswer
from gpudiag.probe.visibility import read_allocation
from gpudiag.sampler.process import ChildProcess

_MODULE = "gpudiag.sampler.inspect"
_GPUTIL, _TORCH = "gputil", "torch"
_HOST_SECONDS = 60.0
_PERIODS = {_GPUTIL: 300.0, _TORCH: 3600.0}  # seconds between two looks, cheapest first
_ANEW_SECONDS = 10.0  # between two looks where something has changed
_AFTER_EVENT_SECONDS = 5.0  # between two looks that events asked for
_DEADLINE_SECONDS = 60.0  # of one look; torch has 30 s of them


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was seen around the GPUs, each part as of when it was last asked."""

    host: Snapshot
    uuids: Mapping[str, str | None]
    gputil: Snapshot | None = None
    torch: Snapshot | None = None

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


class Inspector:
    """Inspects the machine around the GPUs; `publish` gets each new result."""

    def __init__(
        self, publish: Callable[[Surroundings], None], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start nothing yet: the first `look` does."""
        self.surroundings: Surroundings | None = None
        self._publish = publish
        self._environment = environment
        self._child: ChildProcess | None = None
        self._sources: tuple[str, ...] = ()
        self._asked_at = dict.fromkeys(("host", *_PERIODS), -math.inf)
        self._due_at = dict(self._asked_at)
        self._wanted = True
        self._is_outdated = False  # the look in progress began before the GPUs changed
        self._closed: list[ChildProcess] = []

    def ask_soon(self) -> None:
        """Have the host and the kernel log read soon, after an event; see `_AFTER_EVENT_SECONDS`."""
        self._wanted = True

    def ask_others_anew(self) -> None:
        """Drop what GPUtil and torch saw, and ask them again: the driver or its GPUs have changed."""
        self._is_outdated = self._child is not None
        if self.surroundings is not None:
            self.surroundings = replace(self.surroundings, gputil=None, torch=None)
        for name in _PERIODS:
            # Not sooner: a GPU that comes and goes must not keep torch loading.
            self._due_at[name] = self._asked_at[name] + _ANEW_SECONDS

    def look(self) -> None:
        """Start a look if one is due; give up one that is late. Call it about every second."""
        now = monotonic()
        self.count_stuck()
        if self._child is not None:
            if not self._child.ended and now - self._child.started_at < _DEADLINE_SECONDS:
                return
            self.close()
        self._sources = self._due(now)
        wanted = self._wanted and now - self._asked_at["host"] > _AFTER_EVENT_SECONDS
        if not (wanted or self._sources or now - self._asked_at["host"] > _HOST_SECONDS):
            return
        self._wanted = False
        for name in ("host", *self._sources):
            self._asked_at[name] = now
            self._due_at[name] = now + _PERIODS.get(name, 0.0)
        arguments = (",".join(self._sources),) if self._sources else ()
        with suppress(OSError):  # no process can be started: tried again at the next call
            self._child = ChildProcess(_MODULE, arguments, self._receive, self._environment)

    def close(self) -> None:
        """Kill the inspecting child, if there is one."""
        if self._child is not None:
            self._child.abandon()
            self._closed.append(self._child)
            self._child = None

    def count_stuck(self) -> int:
        """The number of killed children that have not ended yet; the others are reaped."""
        self._closed = [child for child in self._closed if not child.is_reaped()]
        return len(self._closed)

    def _due(self, now: float) -> tuple[str, ...]:
        """The sources due: none before the host was seen, so that it comes fast; then GPUtil, then torch."""
        if self.surroundings is None:
            return ()
        return next(((name,) for name in _PERIODS if now > self._due_at[name]), ())

    def _receive(self, _child: ChildProcess, message: dict[str, Any]) -> None:
        snapshot = from_document(message["snapshot"])
        before, sources = self.surroundings, () if self._is_outdated else self._sources
        self.surroundings = Surroundings(
            host=snapshot,
            uuids=message["uuids"],
            gputil=snapshot if _GPUTIL in sources else before.gputil if before else None,
            torch=snapshot if _TORCH in sources else before.torch if before else None,
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
        Snapshot, why, host=hostname, taken_at=now, simulated=None, sources=(host,), devices=(), views=(),
        disagreements=(), machine=machine,
    )  # fmt: skip
    return Surroundings(snapshot, {})
