"""The torch-free parent of the ranks: it watches, outlives them, and says what happened."""

import select
import socket
import time
from collections.abc import Callable
from typing import Any

from gpudiag.errors import RankStartError, UsageError
from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, InjectedFault, RankReport
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.ranks import watchdog
from gpudiag.ranks.interrupts import Interrupts
from gpudiag.ranks.job import Job
from gpudiag.ranks.local import LocalRanks, StartFailure
from gpudiag.ranks.run import RankEvent, RankRun
from gpudiag.ranks.stages import IMPORT, Budgets
from gpudiag.ranks.view import Life, RankView

# Deaths are told at once; this is how often stops, positions and events are looked for. Ten looks a
# second cost about 0.2 % of one processor with four ranks.
_TICK_SECONDS = 0.1


class Agent:
    """Watches the ranks of one run until all have ended well or an incident is certain."""

    def __init__(
        self,
        local: LocalRanks,
        job: Job,
        budgets: Budgets,
        interrupts: Interrupts,
        on_event: Callable[[RankEvent], None] | None,
    ) -> None:
        """Watch `local`; nothing happens before `watch`."""
        self._local = local
        self._job = job
        self._budgets = budgets
        self._interrupts = interrupts
        self._on_event = on_event
        self._host = socket.gethostname()
        self._started = time.monotonic()
        self._events: list[RankEvent] = []
        self._incidents: tuple[Incident, ...] = ()
        self._views: tuple[RankView, ...] = ()
        self._timed_out = False
        self._ended_at = self._started

    def watch(self) -> None:
        """Return when every rank has ended, or an incident is certain, or the user interrupts.

        Raises:
            UsageError: the interpreter cannot run ranks.
            RankStartError: the ranks could not be started.
        """
        while self._interrupts.received is None:
            select.select([self._local.fileno(), self._interrupts.fileno()], [], [], _TICK_SECONDS)
            self._interrupts.drain()
            self._look()
            if self._local.start_failure is not None:
                raise _start_error(self._local.start_failure, self._local.stderr_tail())
            if self._is_over():
                break
        self._ended_at = time.monotonic()

    def build_run(self, unkillable: tuple[int, ...]) -> RankRun:
        """The run as its caller sees it; `unkillable` are pids that SIGKILL did not end."""
        fired = {fault for record in self._local.records for fault in record.faults_fired}
        return RankRun(
            world_size=self._job.world_size,
            launcher="spawn",
            host=self._host,
            reports=tuple(_report(view, unkillable) for view in self._views),
            incidents=self._incidents,
            results={
                record.local.rank: record.result
                for record in self._local.records
                if record.result is not None
            },
            events=tuple(self._events),
            injected=tuple(
                InjectedFault(fault.specification, fault.specification in fired) for fault in self._job.faults
            ),
            seconds=self._ended_at - self._started,
            timed_out=self._timed_out,
        )

    def _look(self) -> None:
        for rank, event in self._local.poll():
            if event["kind"] == "emitted":
                self._pass_on(RankEvent(rank, event["at"] - self._started, event["data"]))
        self._views = self._local.views(self._host, self._started)

    def _pass_on(self, event: RankEvent) -> None:
        self._events.append(event)
        if self._on_event is not None:
            self._on_event(event)

    def _is_over(self) -> bool:
        now = time.monotonic() - self._started
        symptom_at = watchdog.first_symptom_at(self._views)
        settled = symptom_at is None or now - symptom_at >= watchdog.SETTLE_SECONDS
        if settled or self._local.all_ended:
            self._incidents = watchdog.find_incidents(self._with_traces(), self._budgets)
        self._timed_out = self._budgets.run_seconds is not None and now > self._budgets.run_seconds
        self._refuse_slow_start(now)
        return bool(self._incidents) or self._local.all_ended or self._timed_out

    def _with_traces(self) -> tuple[RankView, ...]:
        """The views, with what a rank that ended badly wrote to its standard error."""
        for record in self._local.records:
            broken = record.life is Life.ENDED and record.exit != 0
            if broken and not any(trace.name == "stderr" for trace in record.traces):
                tail = self._local.stderr_tail(record.local.rank)
                if tail:
                    record.traces += (
                        Evidence("stderr", tail, source=f"rank {record.local.rank}'s standard error"),
                    )
        self._views = self._local.views(self._host, self._started)
        return self._views

    def _refuse_slow_start(self, now: float) -> None:
        waiting = any(view.life is Life.NOT_STARTED for view in self._views)
        if waiting and now > self._budgets.seconds_for(IMPORT):
            raise RankStartError(
                f"no rank came up within {self._budgets.seconds_for(IMPORT):.0f} s: the import of "
                f"{self._job.preload[0] if self._job.preload else 'the entry'} takes too long",
                hint="is the file system with your Python packages slow or hung?",
            )


def _report(view: RankView, unkillable: tuple[int, ...]) -> RankReport:
    entered = view.entered
    return RankReport(
        rank=view.rank,
        local_rank=view.local_rank,
        host=view.host,
        pid=Missing(MissingReason.NOT_ASKED, "never started") if view.pid is None else view.pid,
        stage=view.stage,
        exit=_exit_reading(view, unkillable),
        sequence=entered if entered else Missing(MissingReason.NOT_ASKED, "entered no collective"),
    )


def _exit_reading(view: RankView, unkillable: tuple[int, ...]) -> Reading[int]:
    if view.exit is not None:
        return view.exit
    if view.pid in unkillable:
        return Missing(MissingReason.TIMED_OUT, "did not die of SIGKILL: it waits in the kernel")
    return Missing(MissingReason.NOT_ASKED, "killed by gpudiag when the run was over")


def _start_error(failure: StartFailure, stderr: str) -> UsageError | RankStartError:
    facts: dict[str, Any] = failure.facts
    if failure.kind == "absent":
        hint = "pip install 'gpudiag[torch]'" if facts["module"] == "torch" else f"install {facts['module']}"
        return UsageError(f"{facts['module']} is not installed, and ranks need it", hint=hint)
    if failure.kind == "old_python":
        return UsageError(f"ranks need Python 3.11 or later, not {facts['version']}", hint="see --python")
    if failure.kind == "failed":
        error = facts["error"]
        return RankStartError(f"import {facts['module']} raised {error['type']}: {error['message']}")
    if failure.kind == "not_forked":
        return RankStartError(f"rank {facts['rank']} could not be started: {facts['reason']}")
    last_line = stderr.splitlines()[-1] if stderr else "it said nothing"
    return RankStartError(f"the process that starts the ranks ended ({facts.get('exit')}): {last_line}")
