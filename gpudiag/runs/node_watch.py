"""`python -m gpudiag.runs.node_watch PARENT_PID`: every job of several processes here, watched unasked.

Cheaper than `gpudiag run`: a pulse a second of each rank, now and then a burst of ten a second, stacks only
of a job that stands still. A line each for `jobs` (those watched), `stall` and `over`.
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpudiag.checks.job.rhythm import find_long_step_time, find_step_time
from gpudiag.checks.job.short_steps import BURST_SECONDS, BURST_TICK_SECONDS, settle_step_time, wants_burst
from gpudiag.checks.job.stall_rule import StallRule
from gpudiag.checks.job.verdict import judge_job
from gpudiag.compat import UTC
from gpudiag.linux.child import die_with_parent, name_process
from gpudiag.linux.proc import is_stopped
from gpudiag.model.codec import encode
from gpudiag.model.job import Job
from gpudiag.model.job_run import Pulse, Stall, StepTime
from gpudiag.model.reading import NOT_ASKED, Missing, Reading, value_or
from gpudiag.probe.guard import GuardedChild
from gpudiag.probe.job.node_jobs import NodeJob, read_node_jobs, start_node_jobs
from gpudiag.probe.job.ranks_of_run import read_glance, start_glance
from gpudiag.probe.job.simulated import read_simulated_jobs
from gpudiag.reference.stacks import own_frames
from gpudiag.runs.job_run.children import Children
from gpudiag.runs.job_run.look import LOOK_SECONDS, read_look, start_look
from gpudiag.runs.job_run.members import Members
from gpudiag.runs.job_run.stalls import Stalls

# Ten of the job's own steps: half of what `gpudiag run` waits, because nothing is done to the job.
RULE = StallRule(factor=10.0)
LIST_SECONDS = 60.0  # between two lists of jobs; a list takes some 40 ms of a processor
_LIST_AGAIN_SECONDS, _LISTS_FAILED = 10.0, 3
_TICK_SECONDS = 1.0
_CHILD_SECONDS = 20.0
_LOST_SECONDS = 5.0  # between two ticks: the machine slept, or this process was stopped
# A burst of readings shows steps that are too short for a reading a second, and a faster one those that are
# too short for that; the first while the ranks move, the next ones rarer.
_FINE_TICK_SECONDS, _FINE_SECONDS = 0.1, 12.0
_FIRST_BURST_SECONDS, _BURSTS_APART, _RAREST_BURST_SECONDS = 5.0, 3.0, 1800.0
_MOVED_LATELY_SECONDS = 2.0
_OVER_SECONDS = 5.0  # a rank that is killed lets others wake up before they end
_RANKS_LEFT = "its ranks have ended"
_LONG_STEP_SECONDS = 60.0  # between two looks for a long step


@dataclass
class _WatchedJob:
    """One job, its ranks and its standstills."""

    name: str
    pid: int
    stalls: Stalls
    members: Members = field(default_factory=Members)
    step: Reading[StepTime] = NOT_ASKED
    fine: dict[int, list[Pulse]] = field(default_factory=dict)  # of the burst of ten readings a second
    burst: dict[int, list[Pulse]] = field(default_factory=dict)  # that is being read; empty: none
    burst_tick: float = 0.0
    burst_until: float = 0.0
    burst_due: float = 0.0
    burst_pause: float = _FIRST_BURST_SECONDS
    long_due: float = 0.0
    reported: frozenset[int] = frozenset()  # the ranks that lived when a standstill that goes on was reported
    stood_at: float = 0.0  # when it stood still last, of what was reported
    unseen: str = ""  # why its stacks could not be read

    def begin_burst(self, now: float, tick_seconds: float, seconds: float) -> None:
        """Read the ranks that often for so long."""
        self.burst, self.burst_tick = {one.pid: [] for one in self.members.living}, tick_seconds
        self.burst_until = now + seconds

    def still_seconds(self, now: float) -> dict[int, float]:
        """For how long each rank's main thread has not slept, not woken, or only polled, by pid."""
        return {one.pid: now - one.still_since for one in self.members.living if one.fine}


class NodeWatch:
    """Watches the jobs of this machine; `emit` gets each message."""

    def __init__(self, emit: Callable[[dict[str, Any]], None], rule: StallRule = RULE) -> None:
        """Watch nothing yet."""
        self._emit, self._rule = emit, rule
        self._jobs: dict[str, _WatchedJob] = {}
        self._children = Children()
        self._began = self._ticked = time.monotonic()
        self._list_due = self._all_due = 0.0
        self._lists_failed = 0  # in a row

    def run(self, commands: int) -> None:
        """Watch until the descriptor of commands is closed by its other end."""
        while True:
            tick = min((job.burst_tick for job in self._jobs.values() if job.burst), default=_TICK_SECONDS)
            due = self._ticked + tick - time.monotonic()
            owners = self._children.descriptors()
            ready = select.select([commands, *owners], [], [], max(0.0, due))[0]
            if commands in ready and not os.read(commands, 4096):
                return
            for descriptor in ready:
                if descriptor in owners and descriptor in owners[descriptor].descriptors():
                    owners[descriptor].receive(descriptor)
            self._children.finish()
            if time.monotonic() >= self._ticked + tick:
                self._tick()

    def close(self) -> None:
        """End what was started."""
        self._children.close()

    @property
    def seconds(self) -> float:
        """Since the watching began."""
        return time.monotonic() - self._began

    def _tick(self) -> None:
        now, passed = self.seconds, time.monotonic() - self._ticked
        self._ticked = time.monotonic()
        if now >= self._list_due and "list" not in self._children:
            self._list_due = now + LIST_SECONDS
            self._children.start("list", start_node_jobs(), self._take_list, _CHILD_SECONDS)
        every = now >= self._all_due
        if every:
            self._all_due = now + _TICK_SECONDS
        for key, job in list(self._jobs.items()):
            if every or job.burst:
                self._watch(key, job, now, passed)

    def _watch(self, key: str, job: _WatchedJob, now: float, passed: float) -> None:
        job.members.read_pulses(now, datetime.now(UTC))
        if not job.members.living:
            self._forget(key)
            return
        if passed > _LOST_SECONDS or is_stopped(
            job.pid
        ):  # no time in which the job could have moved, or was seen to
            for member in job.members.living:
                member.moved_at = min(now, member.moved_at + passed)
                member.standing.note_movement(now)
            return
        self._glance(key, job, now)
        self._measure_step(job, now)
        still = job.still_seconds(now)
        if not job.burst and key not in self._children and job.stalls.wants_look(still, job.step):
            self._look(key, job, still)
        if job.stalls.stands:
            job.stood_at = now
        elif job.reported and now - job.stood_at >= _OVER_SECONDS:
            left = job.reported - {one.pid for one in job.members.living}
            job.reported = frozenset()
            self._emit({"kind": "over", "key": key, "why": _RANKS_LEFT if left else "the job continues"})

    def _glance(self, key: str, job: _WatchedJob, now: float) -> None:
        """Look where a quiet rank stands, as far as that would show whether it only polls."""
        name = f"glance {key}"
        if name in self._children:
            return
        member = next((one for one in job.members.living if one.standing.wants_glance(now)), None)
        if member is None:
            return

        def take(child: GuardedChild) -> None:
            read = read_glance(child)
            if isinstance(read, tuple) and own_frames(read[2]):
                member.standing.note(now, read[2])

        self._children.start(name, start_glance(member.pid), take, _CHILD_SECONDS)

    def _measure_step(self, job: _WatchedJob, now: float) -> None:
        if job.burst:
            for member in job.members.living:
                if member.pid in job.burst and member.fine:
                    job.burst[member.pid].append(member.fine[-1])
            if now >= job.burst_until:
                self._end_burst(job, now)
            return
        moves = all(still < _MOVED_LATELY_SECONDS for still in job.still_seconds(now).values())
        if now >= job.burst_due and moves and not job.stalls.stands:
            job.fine = {}
            job.begin_burst(now, _FINE_TICK_SECONDS, _FINE_SECONDS)
        elif now >= job.long_due and not job.stalls.stands:
            job.long_due = now + _LONG_STEP_SECONDS
            found = find_long_step_time(job.members.pulses(coarse=True))
            if isinstance(found, StepTime) and (
                isinstance(job.step, Missing) or found.seconds > job.step.seconds
            ):
                job.step = found

    def _end_burst(self, job: _WatchedJob, now: float) -> None:
        """Find the step by the readings of a burst, or by those of a faster one after it."""
        read, job.burst = job.burst, {}
        if not job.fine:
            job.fine = read
            if wants_burst(find_step_time(read), read):
                job.begin_burst(now, BURST_TICK_SECONDS, BURST_SECONDS)
                return
        found = settle_step_time(find_step_time(job.fine), job.fine, read if read is not job.fine else {})
        job.step = found if isinstance(found, StepTime) else job.step
        rarer = _RAREST_BURST_SECONDS if isinstance(found, StepTime) else job.burst_pause * _BURSTS_APART
        job.burst_pause = min(_RAREST_BURST_SECONDS, rarer)
        job.burst_due = now + job.burst_pause

    def _look(self, key: str, job: _WatchedJob, still: dict[int, float]) -> None:
        limit = job.stalls.limit_seconds
        all_still = min(still.values()) >= limit

        def take(child: GuardedChild) -> None:
            verdict, job.unseen = read_look(child)
            longest = max(job.still_seconds(self.seconds).values(), default=0.0)
            stall = job.stalls.take_look(verdict, job.unseen, longest, all_still=all_still)
            if stall is not None and key in self._jobs:
                job.reported = frozenset(one.pid for one in job.members.living)
                self._emit({"kind": "stall", **_document(key, job, stall)})

        earlier = job.stalls.earlier_look()
        pid = job.members.living[0].pid
        child = start_look(pid, limit, "", earlier=earlier)
        self._children.start(key, child, take, LOOK_SECONDS)

    def _take_list(self, child: GuardedChild) -> None:
        found = read_node_jobs(child)
        if found is None:
            self._lists_failed += 1
            self._list_due = self.seconds + _LIST_AGAIN_SECONDS
            if self._lists_failed >= _LISTS_FAILED:  # a busy machine is late once
                reason = f"the jobs could not be listed: {child.detail or child.ending}"
                self._emit({"kind": "failed", "reason": reason})
            return
        self._lists_failed = 0
        for one in found.jobs:
            self._jobs.setdefault(one.key, self._begin(one)).members.update(one.ranks, datetime.now(UTC))
        listed = {one.key for one in found.jobs}
        for key in [key for key, job in self._jobs.items() if key not in listed and not job.members.living]:
            self._forget(key)
        jobs = [_summary(key, job) for key, job in self._jobs.items()]
        self._emit({"kind": "jobs", "jobs": jobs, "hidden": found.hidden})

    def _begin(self, job: NodeJob) -> _WatchedJob:
        first_burst = self.seconds + _FIRST_BURST_SECONDS
        return _WatchedJob(job.name, job.pid, Stalls(self._rule), burst_due=first_burst)

    def _forget(self, key: str) -> None:
        job = self._jobs.pop(key)
        if job.reported:
            self._emit({"kind": "over", "key": key, "why": _RANKS_LEFT})


def _summary(key: str, job: _WatchedJob) -> dict[str, Any]:
    step = None if isinstance(job.step, Missing) else job.step.seconds
    return {
        "key": key,
        "name": job.name,
        "pid": job.pid,
        "ranks": len(job.members.living),
        "step_seconds": step,
    }


def _document(key: str, job: _WatchedJob, stall: Stall) -> dict[str, Any]:
    """What the parent needs of a standstill: the finding where the look gave one, else why there is none."""
    findings = stall.look.findings if stall.look is not None else ()
    return {
        **_summary(key, job),
        "finding": encode(findings[0]) if findings else None,
        "why": "" if findings else stall.unseen,
        "stood_seconds": stall.stood_seconds,
        "limit_seconds": stall.limit_seconds,
    }


def watch_simulated(emit: Callable[[dict[str, Any]], None], commands: int) -> None:
    """Watch a simulated machine's jobs, which stand still, until the descriptor of commands is closed."""
    known: dict[str, Job] | None = None
    while True:
        jobs = {job.name: job for job in read_simulated_jobs() or ()}
        messages = {
            key: _stall_of_recorded(key, job) for key, job in jobs.items() if key not in (known or {})
        }
        if known is None or known.keys() != jobs.keys():
            emit({"kind": "jobs", "jobs": list(messages.values()), "hidden": 0})
        for key in (known or {}).keys() - jobs.keys():
            emit({"kind": "over", "key": key, "why": _RANKS_LEFT})
        for message in messages.values():
            emit({"kind": "stall", **message})
        known = jobs
        if select.select([commands], [], [], _TICK_SECONDS)[0] and not os.read(commands, 4096):
            return


def _stall_of_recorded(key: str, job: Job) -> dict[str, Any]:
    """As `_document`, of a recorded job, which stood for as long as its looks show."""
    findings = judge_job(job).findings
    mains = (rank.last.main for rank in job.ranks)
    still = [value_or(main.last_ran_seconds_ago, 0.0) for main in mains if main is not None]
    return {
        "key": key,
        "name": job.name,
        "pid": job.launcher_pid,
        "ranks": len(job.ranks),
        "step_seconds": None,
        "finding": encode(findings[0]) if findings else None,
        "why": "" if findings else "its looks show no cause",
        "stood_seconds": min(still, default=0.0),
        "limit_seconds": None,
    }


def main() -> None:
    """Watch until the parent is gone."""
    die_with_parent(int(sys.argv[1]))
    name_process("gpudiag-jobs")

    def emit(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    if read_simulated_jobs() is not None:
        watch_simulated(emit, sys.stdin.fileno())
        return
    watch = NodeWatch(emit)
    try:
        watch.run(sys.stdin.fileno())
    finally:
        watch.close()


if __name__ == "__main__":
    main()
