"""Who is missing in a process group of a part of the ranks, by looks at real jobs of which something is taken
away.
"""

from collections.abc import Callable
from dataclasses import replace

from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.verdict import judge_job
from gpudiag.model.job import Frame, Job, JobVerdict
from gpudiag.model.job_state import FlightRecord, JobState, RecordedGroup
from tests.recorded_hangs import recorded


def with_frames(job: Job, change: Callable[[Frame], Frame]) -> Job:
    ranks = []
    for rank in job.ranks:
        looks = tuple(
            replace(
                look,
                threads=tuple(replace(one, frames=tuple(map(change, one.frames))) for one in look.threads),
            )
            for look in rank.looks
        )
        ranks.append(replace(rank, looks=looks))
    return replace(job, ranks=tuple(ranks))


def without_members(job: Job) -> Job:
    """As with a torch whose layout in memory is another one: the group's name and size, and not who belongs
    to it.
    """

    def change(frame: Frame) -> Frame:
        return frame if frame.group is None else replace(frame, group=replace(frame.group, ranks=()))

    return with_frames(job, change)


def with_record(job: Job) -> Job:
    names = {
        frame.group for rank in job.ranks for one in rank.last.threads for frame in one.frames if frame.group
    }
    groups = tuple(RecordedGroup(group.name, "", group.ranks) for group in names)
    record = FlightRecord(0, "2.4", "", groups, (), (), "dump")
    return replace(without_members(job), state=JobState(records=(record,)))


def blamed(verdict: JobVerdict) -> object:
    return getattr(verdict.findings[0].subject, "rank", None)


def test_members_are_taken_from_flight_records_where_memory_does_not_show_them() -> None:
    for name in ("one_line", "swallowed_layer"):
        verdict = judge_job(with_record(recorded(name)))
        assert blamed(verdict) == 1, verdict.headline
        assert "not in the all_reduce of ranks 0 and 1" in verdict.headline


def test_all_ranks_of_the_job_are_waited_for_where_a_group_is_made() -> None:
    """As if rank 0 waited in `new_group` for everybody: ranks 2 and 3, which do something else, are awaited
    too.
    """

    def make(frame: Frame) -> Frame:
        return frame if frame.group is None else replace(frame, function="new_group")

    job = with_frames(recorded("apart"), make)
    verdict = judge_job(job, HangLimits(alone=0.5))
    assert {getattr(one.subject, "rank", None) for one in verdict.findings} != {1}


def test_without_members_nobody_is_blamed_and_it_is_said_who_they_may_be() -> None:
    verdict = judge_job(without_members(recorded("one_line")))
    assert blamed(verdict) is None, verdict.headline
    assert "who of ranks 1-3 belongs to the smaller group" in verdict.headline


def test_where_nothing_tells_who_is_further_on_the_member_that_is_waited_for_is_named() -> None:
    """Neither counters nor the order of two calls in their line: the source could not be read."""

    def blind(frame: Frame) -> Frame:
        return replace(frame, text="", variables=(), inside=())

    verdict = judge_job(with_frames(recorded("one_line"), blind))
    assert blamed(verdict) == 1, verdict.headline
    assert "that rank 0 waits in" in verdict.headline


def test_a_member_that_is_in_an_earlier_step_may_come_yet_and_is_not_blamed() -> None:
    """Rank 1 is two steps behind, in the call of all: it waits for rank 0, which is further on and has left
    that call out.
    """
    job = recorded("swallowed_layer")
    slower = next(rank for rank in job.ranks if rank.rank == 1)

    def behind(frame: Frame) -> Frame:
        return replace(
            frame,
            variables=tuple((name, "5" if name == "step" else value) for name, value in frame.variables),
        )

    changed = with_frames(replace(job, ranks=(slower,)), behind).ranks[0]
    verdict = judge_job(replace(job, ranks=tuple(changed if rank.rank == 1 else rank for rank in job.ranks)))
    assert "rank 1 is not in the all_reduce of ranks 0 and 1" not in verdict.headline
