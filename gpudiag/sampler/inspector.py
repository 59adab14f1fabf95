"""The machine around the GPUs, looked at now and then by a child that comes and goes.

The host and the kernel log cost milliseconds, GPUtil a quarter of a second of processor time, torch two
seconds: each is asked as often as it is worth, and at once when something happened.
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any

from gpudiag.model.codec import from_document
from gpudiag.model.device import DeviceView, Snapshot, SourceState, SourceStatus
from gpudiag.model.host import Machine
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.probe.allocation import read_allocation
from gpudiag.probe.inventory import Answers
from gpudiag.probe.nouns import all_missing
from gpudiag.probe.nvml_answer import NvmlAnswer
from gpudiag.probe.torch_answer import TorchAnswer
from gpudiag.sampler.process import ChildProcess

_MODULE = "gpudiag.sampler.inspect"
_HOST_SECONDS = 60.0
_GPUTIL_SECONDS = 300.0
_TORCH_SECONDS = 3600.0
_AFTER_EVENT_SECONDS = 5.0  # between two looks that something asked for
_DEADLINE_SECONDS = 60.0  # of one look; torch has 30 s of them


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was seen around the GPUs, each part the last time that it was asked."""

    host: Snapshot
    uuids: Mapping[str, str | None]
    gputil: Snapshot | None = None
    torch: Snapshot | None = None

    def answers(self, nvml: NvmlAnswer) -> Answers:
        """The sources' answers, with NVML's."""
        host = self.host
        kernel = tuple(status for status in host.sources if status.name not in _ASKED_APART)
        return Answers(
            nvml=nvml,
            machine=host.machine,
            host_status=host.source("host"),
            gputil_status=_status(self.gputil, "gputil"),
            gputil_views=_views(self.gputil, "gputil"),
            torch=TorchAnswer(
                _status(self.torch, "torch"),
                NOT_ASKED if self.torch is None else self.torch.torch,
                _views(self.torch, "torch"),
            ),
            kernel_events=host.kernel_log,
            kernel_statuses=kernel,
        )


_ASKED_APART = ("nvml", "gputil", "torch", "host")


class Inspector:
    """Looks around the GPUs; `tell` has each new picture."""

    def __init__(
        self, tell: Callable[[Surroundings], None], environment: Mapping[str, str] | None = None
    ) -> None:
        """Look from the first `look` on."""
        self.surroundings: Surroundings | None = None
        self._tell = tell
        self._environment = environment
        self._child: ChildProcess | None = None
        self._sources: tuple[str, ...] = ()
        self._asked_at = dict.fromkeys(("host", "gputil", "torch"), -math.inf)
        self._wanted = True
        self._closed: list[ChildProcess] = []

    def ask_soon(self) -> None:
        """Something happened: look at the host and the kernel log as soon as it is worth it."""
        self._wanted = True

    def look(self) -> None:
        """Start a look if one is due; give up one that is late. To be called every second or so."""
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
        arguments = (",".join(self._sources),) if self._sources else ()
        with suppress(OSError):  # no process is left: tried again at the next look
            self._child = ChildProcess(_MODULE, arguments, self._hear, self._environment)

    def close(self) -> None:
        """Kill the child that looks."""
        if self._child is not None:
            self._child.abandon()
            self._closed.append(self._child)
            self._child = None

    def count_stuck(self) -> int:
        """How many killed children the kernel has not ended yet; those that it has are reaped."""
        self._closed = [child for child in self._closed if not child.is_reaped()]
        return len(self._closed)

    def _due(self, now: float) -> tuple[str, ...]:
        """The host comes first, alone, so that it is there in a moment; then GPUtil; then torch."""
        if self.surroundings is None:
            return ()
        if now - self._asked_at["gputil"] > _GPUTIL_SECONDS:
            return ("gputil",)
        if now - self._asked_at["torch"] > _TORCH_SECONDS:
            return ("torch",)
        return ()

    def _hear(self, _child: ChildProcess, message: dict[str, Any]) -> None:
        snapshot = from_document(message["snapshot"])
        before = self.surroundings
        self.surroundings = Surroundings(
            host=snapshot,
            uuids=message["uuids"],
            gputil=snapshot if "gputil" in self._sources else before.gputil if before else None,
            torch=snapshot if "torch" in self._sources else before.torch if before else None,
        )
        self._tell(self.surroundings)


def _status(snapshot: Snapshot | None, name: str) -> SourceStatus:
    return SourceStatus(name, SourceState.NOT_ASKED) if snapshot is None else snapshot.source(name)


def _views(snapshot: Snapshot | None, name: str) -> tuple[DeviceView, ...]:
    return () if snapshot is None else tuple(view for view in snapshot.views if view.source == name)


def unknown_surroundings(environment: Mapping[str, str], now: datetime) -> Surroundings:
    """The surroundings of GPUs whose host has not answered."""
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
