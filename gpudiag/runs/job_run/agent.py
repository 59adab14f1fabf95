"""The agent beside a job: a process that watches the ranks while another one waits for the command's end.

One loop notes the end of a rank at once; whatever could take long runs in a guarded child.
"""

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpudiag.checks.job.late_ranks import LateRank
from gpudiag.checks.job.rhythm import (
    ROUNDS_AT_LEAST,
    count_meetings,
    find_long_step_time,
    find_step_time,
)
from gpudiag.checks.job.shares import (
    SlowRank,
    describe_late_rank,
    find_odd_sleepers,
    find_slow_ranks,
    judge_glance,
)
from gpudiag.checks.job.short_steps import (
    BURST_SECONDS,
    BURST_TICK_SECONDS,
    settle_step_time,
    wants_burst,
)
from gpudiag.checks.job.stall_rule import StallRule
from gpudiag.compat import UTC
from gpudiag.linux.proc import children, is_stopped
from gpudiag.model.job_run import Pulse, SignalSeen, Stall, StepTime
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild
from gpudiag.probe.job.ranks_of_run import (
    read_glance,
    read_ranks,
    start_glance,
    start_ranks,
)
from gpudiag.runs.job_run.children import Children
from gpudiag.runs.job_run.ending import Ending
from gpudiag.runs.job_run.environment import RUN_VARIABLE
from gpudiag.runs.job_run.look import (
    LOOK_SECONDS,
    RECORDS_SECONDS,
    read_look,
    read_records,
    start_look,
    start_records,
)
from gpudiag.runs.job_run.members import Member, Members
from gpudiag.runs.job_run.stalls import Stalls

_TICK_SECONDS = 0.1
_RANKS_PER_TICK = 16  # with more ranks each is read less often, so that the cost stays
_CHILD_SECONDS = 15.0
# A glance takes some 15 ms of a processor: this often, 0.2 % of one for each rank, and a little more in the
# first half minute. Ranks that get or need little of their processors are looked at less often: the watching
# must not take more than this share of the time that they run, but for what it takes to begin.
_BUDGET_SHARE, _BUDGET_SECONDS = 0.004, 0.3
_SLOWEST_TICK_SECONDS = 0.5
# A rank that starts computes in imports; glances at those would use up what may be spent before the first
# step. One in a quarter of a minute shows whether it has a GPU by now.
_STARTING_SECONDS, _STARTING_GLANCE_SECONDS = 60.0, 15.0
_GLANCE_SECONDS, _FIRST_GLANCE_SECONDS, _FIRST_GLANCES = 8.0, 3.0, 12
_STEP_EVERY_SECONDS = 15.0
_STEP_RANKS = 16
_STANDS_SECONDS = 5.0
_SLOW_EVERY_SECONDS = 30.0
_SLOW_GLANCES = 30  # the latest: the first ones are of imports
# A rank that looks slow is glanced at more often, as often asleep as at work: which of them is why, that may
# only be seen then.
_SUSPECTS_EVERY_SECONDS, _SUSPECTS_SECONDS = 10.0, 60
_SUSPECT_GLANCE_SECONDS, _SUSPECT_GLANCES = 0.7, 6
_SUSPECTS_BUDGET_SECONDS, _GLANCE_TAKES_SECONDS = 0.25, 0.02  # beside what all watching may take
_SUSPECT_SEEN_SECONDS = 300.0
_RECORDS_EVERY_SECONDS = 1800.0
_BURST_EVERY_SECONDS, _BURST_TAKES_SECONDS, _FREE_BURSTS = 120.0, 0.06, 2
_FIND_AFTER_SECONDS, _FIND_AGAIN_SECONDS = 2.0, 60.0
_FAMILIES_AFTER_SECONDS = 30.0  # until then a launcher itself would be taken for the only rank
_LOST_SECONDS = 5.0  # between two ticks: the machine slept, or this process was stopped
# The job counts as standing still, for a look before a signal that ends it, after this long or so many steps.
_STILL_SECONDS, _STILL_STEPS = 3.0, 3.0
_LAST_LOOK_STILL_SECONDS = 1.0  # of two looks that lie 2 s apart: there is no time for a third one
_KILL_AFTER_SECONDS = 30.0
_ENDS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """How the job is watched."""

    run_id: str
    rule: StallRule
    command: tuple[str, ...] = ()
    kill_on_stall: bool = False
    folder: str = ""  # where flight recorders write their dumps
    scratch: str | None = (
        None  # what the names of the job's pipes and of files with its exceptions begin with
    )


class Agent:
    """Watches one job until it learns that the command has ended."""

    def __init__(
        self,
        plan: WatchPlan,
        command_pid: int,
        descriptors: tuple[int, int],
        report_stall: Callable[["Agent", Stall], None],
        announce: Callable[[str], None],
    ) -> None:
        """`descriptors`: where lines of JSON come in, and where a byte goes out for each look asked for.

        `announce` prints a sentence while the job runs.
        """
        self.members = Members(plan.scratch)
        self.stalls = Stalls(plan.rule)
        self.step: Reading[StepTime] = NOT_ASKED
        self.slow: tuple[SlowRank, ...] = ()
        self.late: LateRank | None = None  # by flight records
        self.signals: list[SignalSeen] = []
        self.looks = self.glances = 0
        self.unseen: dict[str, None] = {}  # why something could not be looked at, each reason once
        self.killed: datetime | None = None  # when gpudiag itself ended the job, because it stood still
        self.status: int | None = None  # of the command, once it has ended
        self._plan = plan
        self._command_pid = command_pid
        self._commands, self._replies = descriptors
        self._report_stall = report_stall
        self._announce = announce
        self._ending = Ending(plan.command)
        self._began = self._ticked = time.monotonic()
        self._received = b""
        self._children = Children()
        self._due = {
            "find": 0.0,
            "step": _STEP_EVERY_SECONDS,
            "slow": _SLOW_EVERY_SECONDS,
            "suspects": _SUSPECTS_EVERY_SECONDS,
            "records": 0.0,
        }
        self._suspects: frozenset[int] = frozenset()  # pids
        self._suspects_spent = 0.0
        self._burst: dict[int, list[Pulse]] = {}
        self._burst_until = -_BURST_EVERY_SECONDS
        self._bursts = 0
        self._find_pause = _FIND_AFTER_SECONDS
        self._started: frozenset[int] = frozenset()
        self._held = False
        self._pause = _TICK_SECONDS
        self._spent = _processor_seconds()
        self._kill_at: float | None = None
        self._waits_since: float | None = None  # since when torchrun is there without ranks

    def watch(self) -> int:
        """The command's wait status, once it has ended."""
        while self.status is None:
            pause = self._pause * max(1.0, len(self.members.living) / _RANKS_PER_TICK)
            wait = max(0.0, self._ticked + pause - time.monotonic())
            self._receive(min(wait, BURST_TICK_SECONDS) if self._burst else wait)
            self._add_to_burst()
            if time.monotonic() >= self._ticked + pause:
                self._tick()
        self._receive_ends(_ENDS_SECONDS)
        if self.killed is not None and self.members.living:
            self._end_left()
        self.measure_slow()
        self._children.close()
        return self.status

    @property
    def seconds(self) -> float:
        """Since the agent began."""
        return time.monotonic() - self._began

    def still_seconds(self) -> dict[int, float]:
        """For how long each rank's main thread has not gone to sleep, or slept without waking, by pid."""
        if self._held:
            return {}
        now = self.seconds
        if self.members.agent_pid is not None and self._waits_since is not None:
            return {self.members.agent_pid: now - self._waits_since}
        return {one.pid: now - one.still_since for one in self.members.living if one.fine}

    def _receive(self, seconds: float) -> None:
        """Take what comes within `seconds`: commands, ends of ranks, answers of children."""
        poll = select.poll()
        poll.register(self._commands, select.POLLIN)
        ends = {one.pidfd.descriptor: one for one in self.members.living if one.pidfd is not None}
        children = self._children.descriptors()
        for descriptor in (*ends, *children):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(seconds * 1000):
            if descriptor == self._commands:
                self._take_commands()
            elif descriptor in ends:
                self.members.note_end(ends[descriptor], datetime.now(UTC))
                self._due["find"] = self.seconds  # a launcher may start others in their place
                self._find_pause = _FIND_AFTER_SECONDS
            elif descriptor in children[descriptor].descriptors():
                children[descriptor].receive(descriptor)
        self._children.finish()

    def _end_left(self) -> None:
        """End the ranks that outlive a command which gpudiag ended: a server's workers, or a shell's."""
        until = max(_ENDS_SECONDS, (self._kill_at or 0.0) - self.seconds)
        for number, seconds in ((signal.SIGTERM, until), (signal.SIGKILL, _ENDS_SECONDS)):
            for member in self.members.living:
                _send(member.pid, number)
            self._receive_ends(seconds)

    def _receive_ends(self, seconds: float) -> None:
        """Note the ranks that end within `seconds`; the command may have ended a moment before them."""
        until = time.monotonic() + seconds
        while self.members.living and time.monotonic() < until:
            watched = {one.pidfd.descriptor: one for one in self.members.living if one.pidfd is not None}
            ready = select.select(list(watched), [], [], max(0.0, until - time.monotonic()))[0]
            for descriptor in ready:
                self.members.note_end(watched[descriptor], datetime.now(UTC))
            if not watched:
                return

    def _take_commands(self) -> None:
        data = os.read(self._commands, 65536)
        if not data:  # the other process is gone, and the kernel ends this one with it
            os._exit(0)
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._take_command(json.loads(line))

    def _take_command(self, command: dict[str, Any]) -> None:
        if "ended" in command:
            self.status = command["ended"]
        elif "signal" in command:
            at = datetime.fromtimestamp(command["at"], UTC)
            self.signals.append(SignalSeen(command["signal"], at, command["passed_on"]))
            self._ending.note(command["signal"], self.seconds)
        elif "look" in command:
            self._take_last_look()

    def _take_last_look(self) -> None:
        """Look before a signal ends the job, if it stands still; then let the signal pass."""
        longest = max(self.still_seconds().values(), default=0.0)
        steps = 0.0 if isinstance(self.step, Missing) else _STILL_STEPS * self.step.seconds
        if longest < max(_STILL_SECONDS, steps) or self.stalls.stands:
            os.write(self._replies, b".")
            return

        def take(child: GuardedChild) -> None:
            verdict, _ = read_look(child)
            if verdict is not None:
                self.members.note_look(verdict, self.seconds)
                self.stalls.take_last_look(verdict, longest)
            os.write(self._replies, b".")

        self.looks += 1
        limit = min(longest, _STILL_SECONDS)
        self._children.start(
            "last",
            start_look(self._command_pid, limit, self._plan.folder, _LAST_LOOK_STILL_SECONDS),
            take,
            LOOK_SECONDS,
        )

    def _tick(self) -> None:
        now, wall = self.seconds, datetime.now(UTC)
        passed = time.monotonic() - self._ticked
        self._ticked = time.monotonic()
        held = is_stopped(self._command_pid) if self.members.living else False
        self.members.read_pulses(now, wall)
        if (
            passed > _LOST_SECONDS or held or self._held
        ):  # no time in which the job could have moved, or was seen to
            for member in self.members.living:
                member.moved_at = min(now, member.moved_at + passed)
                member.standing.note_movement(now)
        self._held = held
        self._find(now)
        self._glance(now)
        self._measure(now)
        self._watch_stalls()
        self._kill(now)
        if (sentence := self._ending.describe(self.members.living, now)) is not None:
            self._announce(sentence)

    def _find(self, now: float) -> None:
        """List the ranks when due: when processes start, when ranks end, and now and then."""
        if not self.members.complete:
            started = _descendants(self._command_pid)
            if started - self._started:
                self._due["find"] = min(self._due["find"], now)
            self._started = started
        if now < self._due["find"] or "find" in self._children:
            return
        families = now >= _FAMILIES_AFTER_SECONDS and not any(one.certain for one in self.members.all)

        def take(child: GuardedChild) -> None:
            found = read_ranks(child)
            if found is None:
                self.unseen[f"the ranks could not be listed: {child.detail or child.ending}"] = None
            else:
                self.members.update(found, datetime.now(UTC))
                self._note_agent()

        self._children.start(
            "find",
            start_ranks(self._command_pid, RUN_VARIABLE, self._plan.run_id, families=families),
            take,
            _CHILD_SECONDS,
        )
        self._find_pause = (
            _FIND_AGAIN_SECONDS if self.members.complete else min(_FIND_AGAIN_SECONDS, self._find_pause * 1.5)
        )
        self._due["find"] = now + self._find_pause

    def _note_agent(self) -> None:
        """Follow a torchrun without ranks while it waits for other nodes, until it starts some."""
        if self.members.agent_pid is None:
            if self._waits_since is not None:
                self._waits_since = None
                self.stalls.note_ranks()
        elif self._waits_since is None:
            self._waits_since = self.seconds

    def _glance(self, now: float) -> None:
        """Look where one rank's main thread is: the one that was longest ago, best while it sleeps."""
        if "glance" in self._children or "look" in self._children:
            return
        suspect = next((one for one in self.members.living if self._is_suspect(one, now)), None)
        if suspect is not None and self._suspects_spent < _SUSPECTS_BUDGET_SECONDS:
            self._suspects_spent += _GLANCE_TAKES_SECONDS
            self._start_glance(suspect, now)
            return
        asks = next((one for one in self.members.living if one.standing.wants_glance(now)), None)
        if asks is not None:
            self._start_glance(asks, now)
            return
        standing = (one for one in self.members.living if one.stopped_unseen(now, _STANDS_SECONDS))
        stopped = next((one for one in standing if one.sleeps or one.has_gpu), None)
        if stopped is not None:  # where it stands may be all that is known of it in the end
            stopped.standing_glances += 1
            self._start_glance(stopped, now)
            return
        if self._over_budget():
            return
        for member in sorted(self.members.living, key=lambda one: one.glanced_at):
            if now - member.glanced_at >= self._glance_pause(member, now):
                self._start_glance(member, now)
                return

    def _glance_pause(self, member: Member, now: float) -> float:
        """How long after its last glance a rank is looked at again, as it is now: asleep, or at work."""
        every = _FIRST_GLANCE_SECONDS if len(member.glances) < _FIRST_GLANCES else _GLANCE_SECONDS
        if member.sleeps or member.has_gpu:  # who waits for a GPU spins, and is seen at work
            return every
        return 2 * every if now >= _STARTING_SECONDS else _STARTING_GLANCE_SECONDS

    def _start_glance(self, member: Member, now: float) -> None:
        member.glanced_at = now
        self.glances += 1
        self._children.start(
            "glance", start_glance(member.pid), self._keeper_of_glance(member, now), _CHILD_SECONDS
        )

    def _is_suspect(self, member: Member, now: float) -> bool:
        """Whether a rank looks slow, and was not seen often enough as it is now: asleep, or at work."""
        if member.pid not in self._suspects or now < member.glanced_at + _SUSPECT_GLANCE_SECONDS:
            return False
        asleep = member.sleeps
        lately = [one for one in member.glances if one.at_seconds > now - _SUSPECT_SEEN_SECONDS]
        return sum(one.asleep == asleep for one in lately) < _SUSPECT_GLANCES

    def _keeper_of_glance(self, member: Member, at_seconds: float) -> Callable[[GuardedChild], None]:
        def keep(child: GuardedChild) -> None:
            read = read_glance(child)
            lasting = (MissingReason.NO_PERMISSION, MissingReason.SOURCE_ABSENT)
            if isinstance(read, Missing) and read.reason in lasting and member.lives:
                self.unseen[f"the ranks' stacks could not be read: {read.detail}"] = None
            if (
                child.ending in ("raised", "crashed")
                and member.lives
                and os.path.exists(f"/proc/{member.pid}")
            ):
                self.unseen[f"a glance at a rank's stack failed: {child.detail}"] = None
            if read is not None and not isinstance(read, Missing):
                member.has_gpu = member.has_gpu or read[1]
                member.glances.append(judge_glance(at_seconds, *read))
                member.standing.note(at_seconds, read[2])

        return keep

    def _measure(self, now: float) -> None:
        """Find the step time and the slow ranks where that is due."""
        if now >= self._due["step"]:
            self._due["step"] = now + (_STEP_EVERY_SECONDS if now < 120 else 4 * _STEP_EVERY_SECONDS)
            self.measure_step()
            slower = min(_SLOWEST_TICK_SECONDS, self._pause * 1.5)
            self._pause = slower if self._over_budget() else max(_TICK_SECONDS, self._pause / 1.5)
        if now >= self._due["suspects"]:
            self._due["suspects"] = now + _SUSPECTS_EVERY_SECONDS
            self._find_suspects()
            self._ask_records(now)
        if now >= self._due["slow"]:
            self._due["slow"] = now + _SLOW_EVERY_SECONDS * (1 if now < 300 else 4)
            self.measure_slow()

    def _over_budget(self) -> bool:
        """Whether the watch, except of slow ranks, took more than its share of the ranks' processor time."""
        ranks = sum(one.fine[-1].ran_seconds for one in self.members.all if one.fine)
        apart = self._suspects_spent + _BURST_TAKES_SECONDS * min(self._bursts, _FREE_BURSTS)
        allowed = _BUDGET_SECONDS + _BUDGET_SHARE * ranks + apart
        return _processor_seconds() - self._spent > allowed

    def measure_step(self) -> None:
        """Find the step time; a found one stays where none is found, or once a stall was reported."""
        if self.stalls.stands or self.stalls.ended:
            return
        if any(one.standing.since_seconds is not None for one in self.members.living):
            return  # it may only ask again and again whether something has come, which is no step
        fine = dict(list(self.members.pulses().items())[:_STEP_RANKS])
        found = find_step_time(fine)
        if isinstance(found, Missing) and count_meetings(fine) < ROUNDS_AT_LEAST:
            found = find_long_step_time(dict(list(self.members.pulses(coarse=True).items())[:_STEP_RANKS]))
        elif wants_burst(found, fine):
            if self.seconds >= self._burst_until + _BURST_EVERY_SECONDS and not self._over_budget():
                self._burst, self._burst_until = {pid: [] for pid in fine}, self.seconds + BURST_SECONDS
                self._bursts += 1
                return
            found = settle_step_time(found, fine, {})
        self._keep_step(found)

    def _keep_step(self, found: Reading[StepTime]) -> None:
        if isinstance(self.step, Missing) or not isinstance(found, Missing):
            self.step = found

    def _add_to_burst(self) -> None:
        """Read the ranks' pulses for a burst, if there is one; at its end the step time is settled."""
        if not self._burst:
            return
        now = self.seconds
        for member in self.members.living:
            pulse = member.reader.read(now) if member.pid in self._burst else None
            if pulse is not None:
                self._burst[member.pid].append(pulse)
        if now >= self._burst_until:
            burst, self._burst = self._burst, {}
            fine = {pid: series for pid, series in self.members.pulses().items() if pid in burst}
            if len(fine) == len(burst):
                self._keep_step(settle_step_time(find_step_time(fine), fine, burst))

    def _find_suspects(self) -> None:
        """Note which ranks look slow by the last minute."""
        pulses = {
            pid: series[-_SUSPECTS_SECONDS:] for pid, series in self.members.pulses(coarse=True).items()
        }
        glances = {one.pid: list(one.glances)[-_SLOW_GLANCES:] for one in self.members.living}
        slow = find_slow_ranks(pulses, glances, suspects=True)
        channels = {one.pid: list(one.wait_channels) for one in self.members.living}
        # By their pids.
        self._suspects = frozenset((*(one.rank for one in slow), *find_odd_sleepers(channels)))

    def _ask_records(self, now: float) -> None:
        """Ask the ranks for flight records where one looks slow: seldom, as it writes to the job's log."""
        if not self._suspects or now < self._due["records"] or self._plan.scratch is None:
            return
        if not any(
            os.path.exists(f"{self._plan.scratch}rank-{one.rank}.pipe") for one in self.members.living
        ):
            return
        self._due["records"] = now + _RECORDS_EVERY_SECONDS
        step_seconds = 0.0 if isinstance(self.step, Missing) else self.step.seconds

        def take(child: GuardedChild) -> None:
            self.late = read_records(child) or self.late

        child = start_records(self._command_pid, step_seconds, self._plan.folder)
        self._children.start("records", child, take, RECORDS_SECONDS)

    def measure_slow(self) -> None:
        """Find the ranks that the others wait for; of ended ones, by what was seen."""
        if self.stalls.stands:
            return  # a rank that stands still waits for nobody by being fast
        members = [one for one in self.members.latest if one.coarse]
        names = {one.pid: self.members.name(one.pid) for one in members}
        pulses = {names[one.pid]: list(one.coarse) for one in members}
        glances = {names[one.pid]: list(one.glances)[-_SLOW_GLANCES:] for one in members}
        step_seconds = 0.0 if isinstance(self.step, Missing) else self.step.seconds
        self.slow = find_slow_ranks(pulses, glances, step_seconds)
        if self.late is not None and (found := describe_late_rank(self.late.rank, pulses, glances)):
            same = next((one for one in self.slow if one.rank == found.rank), found)
            late = self.late  # who launches calls last is the slow one, whoever was seen to wait least
            self.slow = (
                replace(
                    same,
                    late_seconds=late.late_seconds,
                    last=late.last,
                    collectives=late.collectives,
                ),
            )

    def _watch_stalls(self) -> None:
        still = self.still_seconds()
        if "look" in self._children or not self.stalls.wants_look(still, self.step):
            return
        limit = self.stalls.limit_seconds
        all_still = len(still) > 0 and min(still.values()) >= limit

        def take(child: GuardedChild) -> None:
            verdict, unseen = read_look(child)
            if unseen:
                self.unseen[unseen] = None
            if verdict is not None:
                self.members.note_look(verdict, self.seconds)
            longest = max(self.still_seconds().values(), default=0.0)
            stall = self.stalls.take_look(verdict, unseen, longest, all_still=all_still)
            if stall is not None:
                self._report_stall(self, stall)
                if self._plan.kill_on_stall and self.killed is None:
                    self.killed = datetime.now(UTC)
                    _send(self._command_pid, signal.SIGTERM)
                    self._kill_at = self.seconds + _KILL_AFTER_SECONDS
                    self._ending.note("SIGTERM", self.seconds)

        self.looks += 1
        earlier = self.stalls.earlier_look()
        child = start_look(self._command_pid, limit, self._plan.folder, earlier=earlier)
        self._children.start("look", child, take, LOOK_SECONDS)

    def _kill(self, now: float) -> None:
        """Kill what SIGTERM did not end, where the user wants a job that stalls to end."""
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for pid in (*(one.pid for one in self.members.living), self._command_pid):
                _send(pid, signal.SIGKILL)


def _processor_seconds() -> float:
    """What this process and its children have taken."""
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _descendants(pid: int, depth: int = 3) -> frozenset[int]:
    """The processes that a process has started, and those below; empty where none are listed."""
    started = children(pid, of_main_thread=True)
    below = [_descendants(child, depth - 1) for child in started] if depth > 1 else []
    return frozenset(started).union(*below)


def _send(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)
