"""When a standstill is told: at the limit of the job's own rhythm, or at once where nothing could make it go
on.
"""

import os
import signal
import subprocess
from datetime import datetime

import pytest

from gpudiag.checks.job import kinds
from gpudiag.checks.job.stall_rule import StallRule
from gpudiag.checks.job.verdict import judge_job
from gpudiag.checks.registry import FindingKind
from gpudiag.compat import UTC
from gpudiag.model.evidence import RankSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Job, JobVerdict, Place
from gpudiag.model.job_run import Glance, StepTime
from gpudiag.probe.job.ranks_of_run import OwnRank, OwnRanks
from gpudiag.runs.job_run.agent import Agent, WatchPlan
from gpudiag.runs.job_run.members import Members
from gpudiag.runs.job_run.stalls import Stalls
from tests.recorded_hangs import recorded

STEP = StepTime(0.5, 30, 0.9, 60.0)  # 20 of them are less than the least limit, 15 s
JOB = Job("torchrun 1: train.py", "a1", "torchrun", 1, 3, None, ())


def look(kind: FindingKind) -> JobVerdict:
    finding = kind.finding(RankSubject(1, "a1"), "rank 1 is not in the all_reduce (train.py:9)")
    places = (
        Place((0, 2), "ranks", "wait in all_reduce", "train.py:9 in main", operation="all_reduce"),
        Place((1,), "sleep", "sleeps", "data.py:6 in load_batch"),
    )
    return JobVerdict(JOB.name, finding.outcome, finding.message, (finding,), places, (), (), JOB)


def told_after(kind: FindingKind) -> float | None:
    """After how many seconds a standstill of two minutes is told, by looks that all show the same."""
    stalls = Stalls(StallRule())
    for second in range(120):
        still = {7: float(second), 8: 0.1}
        if stalls.wants_look(still, STEP) and stalls.take_look(
            look(kind), "", float(second), all_still=False
        ):
            return float(second)
    return None


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        (kinds.SLEEP, 16.0),  # hang says so after 3 s; the job's own rhythm decides here
        (kinds.FILE, 16.0),
        (kinds.STOPPED, 8.0),
        (kinds.GONE, 8.0),
        (kinds.OTHER_COLLECTIVE, 8.0),
        (kinds.WORKS_ALONE, None),  # a warning: it moves
        (kinds.NOT_YET, None),
    ],
    ids=lambda value: getattr(value, "code", str(value)),
)
def test_a_standstill_is_told_at_its_limit(kind: FindingKind, seconds: float | None) -> None:
    assert told_after(kind) == seconds


def test_what_was_seen_of_an_open_standstill_is_there_when_the_job_ends() -> None:
    stalls = Stalls(StallRule())
    assert stalls.open_look is None
    assert stalls.wants_look({7: 9.0, 8: 0.1}, STEP)
    assert stalls.take_look(look(kinds.SLEEP), "", 9.0, all_still=False) is None
    assert stalls.open_look is not None
    assert stalls.open_look.outcome is Outcome.FAIL
    assert stalls.open_stall() is None
    stalls.report_at_end()  # had the job ended now: as hang would have said
    assert stalls.open_stall() is not None
    assert not stalls.wants_look({7: 0.1, 8: 0.1}, STEP)  # it went on
    assert stalls.open_look is None


def test_a_rank_that_ends_in_a_standstill_leaves_what_was_seen_of_it() -> None:
    """Ranks end one after the other, and the launcher after them."""
    stalls = Stalls(StallRule())
    assert stalls.wants_look({7: 9.0, 8: 0.1}, STEP)
    stalls.take_look(look(kinds.SLEEP), "", 9.0, all_still=False)
    assert not stalls.wants_look({8: 0.1}, STEP)
    assert not stalls.wants_look({}, STEP)
    stalls.report_at_end()
    (stall,) = stalls.ended
    assert (stall.reported, stall.ended) == (True, False)
    stalls.report_at_end()
    assert len(stalls.ended) == 1


def test_ranks_were_last_where_the_last_look_saw_them() -> None:
    members = Members()
    members.update(OwnRanks((OwnRank(os.getpid(), 0, ""),), 2, 1), datetime.now(UTC))
    (member,) = members.all
    member.glances.append(Glance(3.0, True, "train.py:2 in <module>", ""))
    assert member.record().last_wait is None
    members.note_look(judge_job(recorded("sleep")), 9.0)  # two others wait in the same call
    assert member.record().last_wait == "all_reduce (kinds.py:108 in reduce)"
    member.glances.append(Glance(12.0, False, "train.py:30 in save", ""))
    assert (member.record().last_place, member.record().last_wait) == ("train.py:30 in save", None)
    members._drop(member)


def test_the_rank_of_a_servers_worker_is_learned_once_something_tells_it() -> None:
    members = Members()
    for rank in (None, 3, None):
        members.update(
            OwnRanks((OwnRank(os.getpid(), rank, "", certain=False),), None, None), datetime.now(UTC)
        )
    (member,) = members.all
    assert member.rank == 3
    members._drop(member)


def test_workers_that_a_killed_server_has_left_are_ended_those_that_ignore_sigterm_too() -> None:
    """`--on-stall kill` sends SIGTERM to the command, and nobody else would end what it leaves."""
    started = [
        subprocess.Popen(["sh", "-c", f"{trap} echo; exec sleep 300"], stdout=subprocess.PIPE)
        for trap in ("", "trap '' TERM;")
    ]
    for one in started:
        assert one.stdout is not None
        one.stdout.readline()
    descriptors = os.pipe()
    agent = Agent(
        WatchPlan("run", StallRule(), kill_on_stall=True),
        started[0].pid,
        descriptors,
        lambda *_: None,
        lambda _: None,
    )
    found = tuple(OwnRank(one.pid, rank, "", certain=False) for rank, one in enumerate(started))
    agent.members.update(OwnRanks(found, 2, 2), datetime.now(UTC))
    agent._kill_at = 0.0
    agent._end_left()
    assert agent.members.living == []
    assert [one.wait() for one in started] == [-signal.SIGTERM, -signal.SIGKILL]
    for descriptor in descriptors:
        os.close(descriptor)
    for one in started:
        assert one.stdout is not None
        one.stdout.close()
