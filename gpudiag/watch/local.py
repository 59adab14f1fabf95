"""This machine: at first what a listing shows, which is there at once.

Later it is what the service's watch keeps up to date.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from gpudiag.model.device import Device, Snapshot
from gpudiag.model.finding import Finding
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.service import Findings, Live
from gpudiag.sampler.picture import NvmlPicture
from gpudiag.service.live import SamplerFacts, build_live
from gpudiag.store.state_folder import default_store
from gpudiag.watch.frame import Frame, History

if TYPE_CHECKING:
    from gpudiag.watch.recording import Recorder

_POINT_SHARE = 0.5  # of the time between two ticks: what comes sooner is the same tick, judged anew


class LocalFeed:
    """This machine, read through the sampler, whose calls into the driver cost nobody else's time."""

    def __init__(
        self,
        interval_seconds: float,
        take_first: Callable[[], Snapshot] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Nothing is read before `run`.

        `take_first` waits for the listing that was started with the command.
        """
        self._interval = interval_seconds
        self._take_first = take_first
        self._recorder = recorder
        self._history = History()
        self._point_at = 0.0
        self._live: Live | None = None
        self._findings: tuple[Finding, ...] = ()
        self._host = os.uname().nodename
        self._changed: Callable[[], None] = lambda: None

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The machine."""
        live = self._live
        received_at = None if live is None else live.at.timestamp()
        host = self._host if live is None else live.host
        return (Frame(host, live, self._findings, self._history.copied(), received_at=received_at),)

    @property
    def note(self) -> str:
        """How the recording goes on."""
        return "" if self._recorder is None else self._recorder.note

    async def run(self, changed: Callable[[], None]) -> None:
        """Show the listing, then watch."""
        self._changed = changed
        first = asyncio.create_task(self._show_first())
        try:
            # The checks take a third of a second to load: meanwhile the listing is shown.
            await asyncio.to_thread(import_module, "gpudiag.service.watch")
            await self._watch()
        finally:
            first.cancel()
            with suppress(asyncio.CancelledError):
                await first

    async def _show_first(self) -> None:
        if self._take_first is None:
            return
        snapshot = await asyncio.to_thread(self._take_first)
        if self._live is None:
            self._take(unjudged_live(snapshot, self._interval))

    async def _watch(self) -> None:
        from gpudiag.probe.job.simulated import read_simulated_jobs
        from gpudiag.service.readings import Readings
        from gpudiag.service.watch import MachineWatch
        from gpudiag.store.aside import StoreAside
        from gpudiag.store.baselines import GoodState

        class NoReadings(Readings):
            """Readings that nobody keeps: the view has its own short history."""

            def add(self, device: Device, at: float) -> None:
                """Forget it."""

        watch = MachineWatch(
            self._receive,
            NoReadings(None),
            GoodState(StoreAside(default_store())),
            watches_jobs=read_simulated_jobs() is not None,
            looked_seconds=self._interval,
            asks_others=False,  # torch takes seconds of a processor to load: a listing does without
        )
        watch.viewers = 1
        await watch.run()

    def _receive(self, update: object) -> None:
        if isinstance(update, Live):
            self._take(update)
        elif isinstance(update, Findings):
            self._findings = update.findings
            if self._recorder is not None:
                self._recorder.write(self._host, "findings", update, update.at.timestamp())

    def _take(self, live: Live) -> None:
        self._live, self._host = live, live.host
        at = live.at.timestamp()
        if at - self._point_at >= _POINT_SHARE * self._interval:
            self._point_at = at
            self._history.add(live)
        if self._recorder is not None:
            self._recorder.write(live.host, "live", live, at)
        self._changed()

    def seek(self, seconds: float) -> None:
        """Nothing: what happens now cannot be wound back."""

    def hold(self, *, is_held: bool) -> None:
        """Nothing: the machine goes on; only the picture stands still."""


def unjudged_live(snapshot: Snapshot, interval_seconds: float) -> Live:
    """A listing as a tick, before any check has judged it; GPUs that have not answered yet are left out."""
    facts = SamplerFacts(
        polls=True,
        paused=False,
        silent_seconds=None,
        interval_seconds=interval_seconds,
        restarts=0,
        stuck=0,
        since=None,
    )
    nvml = snapshot.source("nvml")
    read = tuple(device for device in snapshot.devices if not _is_late(device))
    of_all = "" if len(read) == len(snapshot.devices) else f" of {len(snapshot.devices)}"
    headline = f"{len(read)}{of_all} GPU{'s' * (len(read) != 1)} read, not judged yet"
    if not snapshot.devices:
        headline = nvml.reason or "no GPU was read yet"
    return replace(
        build_live(replace(snapshot, devices=read), NvmlPicture(), facts, None, {}, 0), headline=headline
    )


def _is_late(device: Device) -> bool:
    """Whether the GPU had no time to answer: the watch finds out whether it hangs."""
    why = device.responding
    return isinstance(why, Missing) and why.reason in (MissingReason.TIMED_OUT, MissingReason.ATTACHING)
