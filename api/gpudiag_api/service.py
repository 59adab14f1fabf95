"""Everything that one service is made of, and how it starts and stops."""

import asyncio
import logging

from gpudiag import __version__
from gpudiag.model.codec import dump_document, dumps, encode
from gpudiag.model.reading import NOT_ASKED, Missing
from gpudiag.model.run import Run, RunUpdate
from gpudiag.model.service import Findings, Live, SamplerState, ServiceHealth
from gpudiag.service.manager import RunManager
from gpudiag.service.readings import Readings
from gpudiag.service.usage import IdleClock, RecentShares
from gpudiag.service.watch import MachineWatch, Update
from gpudiag.store.aside import StoreAside
from gpudiag.store.baselines import GoodState
from gpudiag.store.seen_gpus import SeenFile
from gpudiag.store.state_folder import own_machine_key
from gpudiag_api.access import Access
from gpudiag_api.history import HistoryBodies
from gpudiag_api.live_events import LIVE
from gpudiag_api.replies import Problem
from gpudiag_api.settings import Settings

_log = logging.getLogger("gpudiag.service")
_FRESH = (SamplerState.OK, SamplerState.SLOW, SamplerState.PAUSED, SamplerState.NO_GPU, SamplerState.OFF)


class Service(Access):
    """The machine's watch, the runs, and the listeners."""

    def __init__(self, settings: Settings) -> None:
        """Make all of it; nothing runs before `start`."""
        super().__init__(settings)
        self.idle = IdleClock()
        self.shares = RecentShares()
        folder = settings.state_folder
        self.readings = Readings(None if folder is None else folder / "readings")
        self.history = HistoryBodies(self.readings)
        self.store = None if settings.store is None else StoreAside(settings.store)
        self.good_state = GoodState(self.store)
        self.seen_file = SeenFile(folder, own_machine_key())
        self.watch = MachineWatch(
            self._publish,
            self.readings,
            self.good_state,
            polls=settings.polls,
            seen_file=self.seen_file,
            kubelet_socket=settings.kubelet_socket,
            watches_jobs=settings.watches_jobs,
        )
        self.runs = RunManager(
            self.watch,
            self._publish_run,
            None if folder is None else folder / "runs",
            self.store,
            settings.kinds,
            settings.interpreters,
        )
        self._state_problem = settings.state_problem
        self._state_fails = False  # whether a part of the memory has met that problem, too
        self._warned = {settings.state_problem}  # printed at the start
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start to watch the machine, and continue with queued runs."""
        self._tasks = [asyncio.create_task(self.watch.run()), asyncio.create_task(self.runs.run())]
        for task in self._tasks:
            task.add_done_callback(self.end_by_bug)

    async def stop(self) -> None:
        """End runs, children and streams; save the readings."""
        self.events.close()
        await self.runs.close()
        for task in self._tasks:
            task.remove_done_callback(self.end_by_bug)
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.history.close()
        self.readings.close()
        self.seen_file.close()
        if self.store is not None:
            self.store.close()

    def note_look(self) -> None:
        """Somebody looks: the GPUs are read more often for a while."""
        self.watch.note_look()

    def need_live(self) -> Live:
        """The newest tick. Raises Problem: there is none yet."""
        if self.watch.live is None or self.live is None:
            raise Problem(
                503,
                "service.starting",
                "the machine has not been read yet",
                "ask again in a second",
                {"Retry-After": "1"},
            )
        return self.watch.live

    def health(self) -> ServiceHealth:
        """The service's health: whether there is fresh data, and what is wedged."""
        live = self.watch.live
        sampler = None if live is None else live.sampler
        return ServiceHealth(
            ready=sampler is not None and sampler.state in _FRESH and self._is_fresh(live),
            version=__version__,
            started_at=self.started_at,
            sampler_state=SamplerState.STARTING.value if sampler is None else sampler.state.value,
            reason=None if sampler is None else sampler.reason,
            wedged_call=None if sampler is None else sampler.wedged_call,
            last_good_at=NOT_ASKED if sampler is None else sampler.last_good_at,
            stuck_children=self.watch.stuck,
            restarts=self.watch.restarts,
            stream_clients=len(self.events.listeners),
            warnings=self._warnings(),
        )

    def last_success_at(self, live: Live) -> float | None:
        """Unix time at which NVML answered last, in this service or the one before it, else of the start.

        None where there is nothing to collect: no NVML is asked, or nothing shows a GPU that it should know
        of.
        """
        last, findings = (
            live.sampler.last_good_at,
            () if self.watch.findings is None else self.watch.findings.findings,
        )
        if not isinstance(last, Missing):
            return last.timestamp()
        missed = live.devices or any(finding.code.startswith("nvml.") for finding in findings)
        if not self.settings.polls or not missed:
            return None
        return (self.watch.remembered_at or self.started_at).timestamp()

    def _warnings(self) -> tuple[str, ...]:
        """What cannot be stored, read back or named, and why."""
        stored = [one.warning for one in (self.readings, self.runs, self.seen_file)]
        if self._state_problem and self._state_fails and not any(stored):
            self._state_problem = ""  # the disk takes it again
        self._state_fails = any(stored)
        warnings = [self._state_problem] if self._state_problem else stored
        return tuple(filter(None, (*warnings, self.good_state.warning, *self.watch.warnings)))

    def _log_warnings(self) -> None:
        """Log each warning once, as it comes."""
        warnings = set(self._warnings())
        for words in warnings - self._warned:
            _log.warning(words)
        self._warned = warnings

    def _is_fresh(self, live: Live | None) -> bool:
        if live is None or live.sampler.state not in (SamplerState.OK, SamplerState.SLOW):
            return live is not None
        age_seconds = self.watch.age_seconds
        return age_seconds is not None and age_seconds <= live.sampler.stale_after_seconds

    def _publish(self, update: Update) -> None:
        self.watch.viewers = len(self.events.listeners)
        if isinstance(update, Live):
            text = dumps(update)
            self.publish_live(LIVE, text)
            self._log_warnings()
            if self.watch.snapshot is not None:
                for device in self.watch.snapshot.devices:
                    self.idle.note(device, update.at)
                self.shares.note(self.watch.snapshot, update.at)
        elif isinstance(update, Findings):
            self.findings = dumps(update)
            self.events.publish("findings", self.findings)
        else:
            self.events.publish("event", dump_document(encode(update)))

    def _publish_run(self, update: RunUpdate) -> None:
        if isinstance(update, Run):
            self.events.publish("run", dumps(update))
            self.watch.active_runs = self.runs.active()
        else:
            self.events.publish(update.name, update.text)
