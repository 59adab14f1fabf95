"""The runs of the service: started one at a time for each set of GPUs, followed, cancelled, stored.

Each is a child process running gpudiag's command line, so that no run can hang or crash the
service. A run ends with the service; after a kill -9 the next service finds it in the store and marks
it LOST.
"""

import asyncio
import json
import os
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import monotonic

from gpudiag.compat import UTC
from gpudiag.errors import RunConflictError, UsageError
from gpudiag.model.codec import encode
from gpudiag.model.option import Plan
from gpudiag.model.run import (
    ENDED,
    EventKind,
    NumberedEvent,
    Run,
    RunEvent,
    RunEvents,
    RunNews,
    RunRequest,
    RunState,
    RunUpdate,
)
from gpudiag.model.service import ActiveRun
from gpudiag.model.untrusted_text import escape_steering, mask_text
from gpudiag.render.report_formats import formats_of
from gpudiag.service.kinds import RunKind, run_kinds
from gpudiag.service.run_findings import RunFindings
from gpudiag.service.run_list import (
    HOST,
    LOOK,
    FullQueueError,
    HeldError,
    RunEntry,
    RunList,
    RunMemory,
    choose_gpus,
    describe_lock,
    is_service_alive,
    refuse_busy,
)
from gpudiag.service.run_process import RunProcess
from gpudiag.service.watch import MachineWatch
from gpudiag.store.aside import StoreAside

MAX_QUEUED = 16
KEPT_RUNS = 200
_WITHOUT_GPUS = ((HOST,), (LOOK,))
_READ_AGAIN = 40  # runs of earlier services whose findings may be present still
_POLL_SECONDS = 0.1
_CALM_SECONDS = 0.5  # while no run waits or goes on: each time costs the processor's sleep
_CLOSE_SECONDS = 4.0


_ENDED_WITH_SERVICE = "the service ended during the run, and the run with it"


class RunManager:
    """The runs of one service."""

    def __init__(
        self,
        watch: MachineWatch,
        publish: Callable[[RunUpdate], None],
        folder: Path | None,
        store: StoreAside | None,
        kinds: tuple[str, ...],
        interpreters: Mapping[str, str] | None = None,
    ) -> None:
        """Pass every change to `publish`; reports are kept in `folder`, or in a temporary one.

        `interpreters` are those that a request may name, with their paths.
        """
        self.kinds = run_kinds(kinds)
        self._interpreters = dict(interpreters or {})
        self._watch = watch
        self._publish = publish
        self._memory = RunMemory(folder, store, lambda: watch.snapshot)
        self._list = RunList()
        self.findings = RunFindings()
        self._closing = False
        self._began = datetime.now(UTC)

    @property
    def warning(self) -> str:
        """Why runs are not stored; empty if they are."""
        return self._memory.warning

    async def run(self) -> None:
        """Start and follow the runs that are submitted, until cancelled."""
        self._memory.load()
        while True:
            if self._memory.loaded is not None:
                self._add_stored(self._memory.loaded)
                self._memory.loaded = None
            while self._memory.looked:
                self.findings.add(self._memory.looked.popleft())
            self._look()
            self._memory.keep_house()
            goes_on = bool(self._list.queued()) or any(entry.process for entry in self._list)
            await asyncio.sleep(_POLL_SECONDS if goes_on else _CALM_SECONDS)

    async def close(self) -> None:
        """End every run, and wait a moment for that."""
        self._closing = True
        for entry in self._list:
            if entry.run.state is RunState.QUEUED:
                self._end(entry, RunState.CANCELLED, "the service stopped")
            elif entry.process is not None and entry.run.state is RunState.RUNNING:
                self._change(
                    entry, replace(entry.run, state=RunState.CANCELLING, reason="the service stopped")
                )
                entry.process.ask_to_end()
        until = monotonic() + _CLOSE_SECONDS
        while monotonic() < until and any(entry.process for entry in self._list):
            self._look()
            await asyncio.sleep(0.05)
        for entry in self._list:
            if entry.process is not None:
                entry.process.kill()
                self._end(entry, RunState.CANCELLED, "the service stopped")
        self._memory.finish()

    def submit(self, request: RunRequest) -> Run:
        """Start a run, or queue it if the request allows that and another one holds its GPUs.

        Raises:
            UsageError: there is no such kind or GPU, or the plan is out of bounds.
            RunConflictError: another run holds the GPUs, other processes use them, or the queue is full.
        """
        kind = self.kinds.get(request.kind)
        if kind is None:
            raise UsageError(
                f"there is no kind of run {request.kind[:40]!r}", hint=f"one of {', '.join(self.kinds)}"
            )
        if request.interpreter is not None and request.interpreter not in self._interpreters:
            known = (
                ", ".join(sorted(self._interpreters)) or "none: gpudiag serve --python NAME=PATH names one"
            )
            raise UsageError(f"there is no interpreter {request.interpreter[:40]!r}", hint=known)
        plan = kind.parse_plan(request.plan, force=request.force)
        force = request.force or getattr(plan, "force", False)
        gpus = choose_gpus(self._watch.snapshot, request.gpus, force=force)
        lock = (HOST,) if kind.on_cpu(plan) or not gpus else gpus
        if kind.only_looks:
            lock = (LOOK,)
        if lock not in _WITHOUT_GPUS and not force:
            refuse_busy(self._watch.snapshot, lock)
        holder = self._list.holder_of(lock)
        if holder is not None and not request.queue:
            raise HeldError(
                f"run {holder.run.id} ({holder.run.kind}) holds {describe_lock(lock)}", holder.run.id
            )
        if holder is not None and len(self._list.queued()) >= MAX_QUEUED:
            raise FullQueueError(f"{MAX_QUEUED} runs wait already", hint="cancel one, or ask again later")
        entry = self._make(request, kind, plan, lock)
        self._list.add(entry)
        for old in self._list.forget_beyond(KEPT_RUNS):
            self._memory.forget(old)
        if holder is None:
            self._start(entry)
        else:
            self._change(entry, entry.run)
        return self._list.show(entry)

    def cancel(self, identity: str) -> Run:
        """Ask a run to end, which takes some seconds; return it.

        Raises:
            RunNotFoundError: there is no such run.
            RunConflictError: it has ended.
        """
        entry = self._list.find(identity)
        if entry.run.state in ENDED:
            raise RunConflictError(f"run {identity} has ended: {entry.run.state.value}")
        if entry.process is None:
            self._end(entry, RunState.CANCELLED, "cancelled before it started")
        elif entry.run.state is RunState.RUNNING:
            self._change(entry, replace(entry.run, state=RunState.CANCELLING, reason="a user cancelled it"))
            entry.process.ask_to_end()
        return entry.run

    def find(self, identity: str) -> Run:
        """The run of that id. Raises RunNotFoundError: there is none."""
        return self._list.show(self._list.find(identity))

    def list_runs(self, kind: str | None = None, state: str | None = None) -> tuple[Run, ...]:
        """The runs, newest first."""
        runs = [self._list.show(entry) for entry in reversed(tuple(self._list))]
        return tuple(run for run in runs if kind in (None, run.kind) and state in (None, run.state.value))

    def active(self) -> tuple[ActiveRun, ...]:
        """The runs that are queued or running, oldest first."""
        return self._list.active()

    def events(self, identity: str, since: int = 0) -> RunEvents:
        """The run's events after event number `since`. Raises RunNotFoundError: there is no such run."""
        entry = self._list.find(identity)
        events = entry.events
        if entry.process is not None:
            events = tuple(NumberedEvent(number, event) for number, event in entry.process.events)
        return RunEvents(identity, tuple(one for one in events if one.number > since))

    async def log(self, identity: str) -> bytes:
        """The end of the run's output, without secrets and terminal control sequences.

        Raises:
            RunNotFoundError: there is no such run.
        """
        entry = self._list.find(identity)
        if entry.process is not None:
            log = bytes(entry.process.log)
        else:
            log = entry.log or await self._memory.read(entry.run, "log.txt") or b""
        return escape_steering(mask_text(log.decode(errors="replace"))).encode()

    async def report(self, identity: str) -> bytes | None:
        """The run's document; None if it wrote none. Raises RunNotFoundError: there is no such run."""
        return await self._memory.read_report(self._list.find(identity).run)

    def _make(self, request: RunRequest, kind: RunKind, plan: Plan, lock: tuple[str, ...]) -> RunEntry:
        now = datetime.now(UTC)
        named = () if request.interpreter is None else ("--python", self._interpreters[request.interpreter])
        identity = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        run = Run(
            id=identity,
            kind=kind.name,
            state=RunState.QUEUED,
            plan=kind.plan_document(plan),
            gpus=() if lock in _WITHOUT_GPUS else lock,
            lock=lock,
            command=shlex.join(("gpudiag", kind.name, *plan.to_argv(), *named)),
            deadline_seconds=kind.deadline_of(plan),
            requested_at=now,
            interpreter=request.interpreter,
        )
        return RunEntry(run, kind, plan, flags=named)

    def _start(self, entry: RunEntry) -> None:
        kind, plan, run = entry.kind, entry.plan, entry.run
        assert kind is not None and plan is not None  # noqa: S101, PT018 - only loaded runs lack them
        try:
            entry.folder = self._memory.make_folder(run)
            argv = [kind.name, *plan.to_argv(), *entry.flags, *kind.outputs(entry.folder)]
            entry.process = RunProcess(argv, self._environment(run), self._listen_to(entry))
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            self._end(entry, RunState.FAILED, f"it could not be started: {error.strerror or error}{place}")
            return
        entry.began = monotonic()
        if kind.disturbs(plan) and run.gpus:
            self._watch.pause(run.id)
        started = replace(run, state=RunState.RUNNING, started_at=datetime.now(UTC), queue_position=None)
        self._change(entry, started)
        self._watch.note_run(f"run {run.id} started: {run.command}", "pass")

    def _environment(self, run: Run) -> Mapping[str, str]:
        """The service's own environment, with only the run's GPUs visible."""
        environment = {**os.environ, "NO_COLOR": "1"}
        if run.gpus:
            environment |= {"CUDA_VISIBLE_DEVICES": ",".join(run.gpus)}
        return environment

    def _listen_to(self, entry: RunEntry) -> Callable[[RunProcess, RunEvent | None, str], None]:
        def received(process: RunProcess, event: RunEvent | None, text: str) -> None:
            run = entry.run
            if event is None:
                self._publish(RunNews("run_log", json.dumps({"run": run.id, "text": text})))
                return
            news = {"run": run.id, "number": process.event_count, "event": encode(event)}
            self._publish(RunNews("run_event", json.dumps(news)))
            progress = event.done / event.planned if event.planned else None
            if event.kind is EventKind.RANKS:
                return
            entry.run = replace(
                run, stage=event.stage or run.stage, done=event.done, planned=event.planned, progress=progress
            )
            if event.kind in (EventKind.STAGE, EventKind.RESULT):
                self._publish(entry.run)

        return received

    def _look(self) -> None:
        """Notice runs that ended or passed their deadline, and start those whose turn it is."""
        for entry in self._list:
            if entry.process is not None:
                self._look_at(entry, entry.process)
        if not self._closing:
            for entry in self._list.whose_turn_it_is():
                self._start(entry)

    def _look_at(self, entry: RunEntry, process: RunProcess) -> None:
        status = process.exit_status()
        if status is None:
            limit = entry.run.deadline_seconds
            late = limit is not None and monotonic() - entry.began > limit
            if late and entry.run.state is RunState.RUNNING:
                reason = f"it took longer than {limit:.0f} s"
                entry.ends_as = RunState.FAILED
                entry.run = replace(entry.run, state=RunState.CANCELLING, reason=reason)
                process.ask_to_end()
            return
        process.close()
        cancelled = entry.run.state is RunState.CANCELLING
        outcome = None if cancelled else process.outcome(status)
        if cancelled:
            self._end(entry, entry.ends_as, entry.run.reason, status)
        elif outcome is not None:
            self._end(entry, RunState.SUCCEEDED, None, status, outcome)
        else:
            self._end(entry, RunState.FAILED, process.why_failed(status), status)

    def _end(
        self,
        entry: RunEntry,
        state: RunState,
        reason: str | None,
        status: int | None = None,
        outcome: str | None = None,
    ) -> None:
        process, entry.process = entry.process, None
        if process is not None:
            process.close()
            entry.log = bytes(process.log)
            entry.events = tuple(NumberedEvent(number, event) for number, event in process.events)
        self._watch.resume(entry.run.id)
        has_report = entry.folder is not None and self._memory.has_report(entry.run)
        run = replace(
            entry.run,
            state=state,
            ended_at=datetime.now(UTC),
            reason=reason,
            exit_status=status,
            outcome=outcome,
            progress=1.0 if state is RunState.SUCCEEDED else entry.run.progress,
            has_report=has_report,
            report_formats=formats_of(entry.kind.report_type) if has_report and entry.kind else (),
            log_bytes=0 if process is None else process.log_bytes,
            queue_position=None,
        )
        self._change(entry, run)
        if entry.folder is not None:
            self._memory.save_log(run, entry.log)
        if has_report and state is RunState.SUCCEEDED:
            self._memory.read_findings(run)
        self._note_end(run)

    def _note_end(self, run: Run) -> None:
        words = run.outcome or run.state.value
        self._watch.note_run(
            f"run {run.id} ended: {words}", "fail" if words in ("fail", "failed") else "pass"
        )

    def _change(self, entry: RunEntry, run: Run) -> None:
        entry.run = run
        self._publish(self._list.show(entry))
        self._memory.save(run)

    def _add_stored(self, loaded: list[tuple[Run, str]]) -> None:
        """Add what others stored: runs of earlier services, LOST where one ended during them, and jobs."""
        earlier = [
            RunEntry(run, folder=self._memory.folder_of(run))
            for run, service in loaded[-KEPT_RUNS:]
            # Another live service on this machine may own a run that has not ended.
            if run.id not in self._list and (run.state in ENDED or not is_service_alive(service))
        ]
        self._list.put_among(earlier)
        for old in self._list.forget_beyond(KEPT_RUNS):
            self._memory.forget(old)
        for entry in earlier[-_READ_AGAIN:]:
            if entry.run.has_report and entry.run.state is RunState.SUCCEEDED:
                self._memory.read_findings(entry.run)
        for run in (one.run for one in earlier):
            if run.ended_at is not None and run.ended_at >= self._began:  # while people look
                self._publish(run)
                self._note_end(run)
        lost = [entry for entry in earlier if not entry.has_ended]
        for entry in lost:
            waited = entry.run.state is RunState.QUEUED
            reason = (
                "the service ended before this run's turn: start it again" if waited else _ENDED_WITH_SERVICE
            )
            self._change(
                entry, replace(entry.run, state=RunState.LOST, ended_at=datetime.now(UTC), reason=reason)
            )
            self._watch.note_run(f"run {entry.run.id} was lost: {reason}", "fail")
