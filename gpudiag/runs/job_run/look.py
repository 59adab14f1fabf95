"""A look at the whole job, as `gpudiag hang` takes it, and one at its flight records, in guarded children.

A dump that gpudiag asked for is read and removed; what the job's own watchdog wrote stays.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpudiag.checks.job.late_ranks import LateRank, find_late_rank
from gpudiag.checks.job.movement import moved
from gpudiag.checks.job.stall_rule import WORK_LIMITS
from gpudiag.model.codec import decode, encode
from gpudiag.model.job import Job, JobVerdict, ProcessLook, RankSeen
from gpudiag.probe.guard import GuardedChild, start_guarded
from gpudiag.runs.job_run.environment import DUMP_NAME

LOOK_SECONDS = 60.0  # up to four looks in 6 s, and ten times as long on a machine with a load of 80


RECORDS_SECONDS = 15.0
_RECORDED_CALLS = 400  # of each group: some minutes of a training


def start_look(
    pid: int,
    limit_seconds: float,
    folder: str,
    still_seconds: float | None = None,
    earlier: tuple[Job, float] | None = None,
) -> GuardedChild:
    """A child that looks at the job of a process, and judges it as `gpudiag hang` does.

    The limit is for ranks that all stand still, or work (six times, at least `gpudiag hang`'s: a download, an
    evaluation). A rank that others wait for must not move for `still_seconds` of the look, by default as
    there. `earlier`: the job in an earlier look at the same standstill, and how many seconds ago: who has not
    moved since has stood still for so long.
    """
    before = None if earlier is None else (encode(earlier[0]), earlier[1])
    return start_guarded(
        "gpudiag.runs.job_run.look:stream_look",
        pid,
        limit_seconds,
        folder,
        still_seconds,
        before,
    )


def stream_look(
    emit: Callable[[Any], None],
    pid: int,
    limit_seconds: float,
    folder: str,
    still_seconds: float | None,
    before: tuple[Any, float] | None = None,
) -> None:
    """Send `("verdict", document)`, or `("none",)` where the job has ended."""
    # A look is rare, and what it takes is much: not at each start.
    from gpudiag.checks.job.hang_limits import (
        HangLimits,
    )
    from gpudiag.runs.hang import watch_job

    usual = HangLimits()
    limits = HangLimits(
        still=min(limit_seconds, usual.still if still_seconds is None else still_seconds),
        idle=limit_seconds,
        alone=min(limit_seconds, usual.alone),
        work=max(WORK_LIMITS * limit_seconds, usual.work),
        loop=min(limit_seconds, usual.loop),
        locked=min(limit_seconds, usual.locked),
        absent=min(limit_seconds, usual.absent),
        node=min(limit_seconds, usual.absent),  # the limit for a standstill is the user's
        work_flag=f"{WORK_LIMITS:.0f} times --stall-after, {usual.work / 60:.0f} min at least",
    )
    with _without_new_dumps(folder):
        add_earlier = (
            None if before is None else partial(with_earlier_looks, decode(Job, before[0]), before[1])
        )
        verdict = watch_job(pid, limits, add_earlier)
    emit(("none",) if verdict is None else ("verdict", encode(verdict)))


def with_earlier_looks(earlier: Job, seconds_ago: float, job: Job) -> Job:
    """The job with the looks of before at those ranks that have not moved since; their times lie before 0."""
    known = {rank.pid: rank.looks for rank in earlier.ranks}
    return replace(
        job, ranks=tuple(_with_earlier(rank, known.get(rank.pid, ()), seconds_ago) for rank in job.ranks)
    )


def _with_earlier(rank: RankSeen, before: Sequence[ProcessLook], seconds_ago: float) -> RankSeen:
    whole = [look for look in before if look.main is not None]
    if not whole or not rank.looks or moved((whole[-1], rank.first)):
        return rank
    kept = whole[-1:] if moved(whole) or len(whole) < 2 else [whole[0], whole[-1]]
    shift = rank.first.at_seconds - seconds_ago - whole[-1].at_seconds
    return replace(
        rank, looks=(*(replace(one, at_seconds=one.at_seconds + shift) for one in kept), *rank.looks)
    )


@contextmanager
def _without_new_dumps(folder: str) -> Iterator[None]:
    """Remove the dumps that appear in the folder meanwhile: they were asked for, and read."""
    if not folder:
        yield
        return
    before = set(Path(folder).glob(f"{DUMP_NAME}*"))
    try:
        yield
    finally:
        for path in set(Path(folder).glob(f"{DUMP_NAME}*")) - before:
            with suppress(OSError):
                path.unlink()


def start_records(pid: int, step_seconds: float, folder: str) -> GuardedChild:
    """A child that asks the ranks for flight records by their pipes, and finds who comes late."""
    return start_guarded("gpudiag.runs.job_run.look:stream_records", pid, step_seconds, folder)


def stream_records(emit: Callable[[Any], None], pid: int, step_seconds: float, folder: str) -> None:
    """Send `("late", values of a LateRank)`, or `("nobody", how many records were read)`."""
    from gpudiag.probe.job.gather import gather_looks
    from gpudiag.probe.job.look import Wanted
    from gpudiag.probe.job.state import read_job_state

    jobs = gather_looks(Wanted(pid=pid, looks=0)).jobs
    with _without_new_dumps(folder):
        records = read_job_state(jobs[0], kept_calls=_RECORDED_CALLS).records if jobs else ()
    late = find_late_rank(records, step_seconds)
    emit(("nobody", len(records)) if late is None else ("late", asdict(late)))


def read_records(child: GuardedChild) -> LateRank | None:
    """Who comes late by an ended `start_records`; None for nobody, or without records."""
    return next((LateRank(**rest[0]) for kind, *rest in child.messages if kind == "late"), None)


def read_look(child: GuardedChild) -> tuple[JobVerdict | None, str]:
    """The verdict of an ended child of `start_look`, or why there is none."""
    for kind, *rest in child.messages:
        if kind == "verdict":
            return decode(JobVerdict, rest[0]), ""
        if kind == "none":
            return None, "the ranks had ended before the look"
    if child.ending == "timed_out":
        return None, f"the ranks could not be read within {LOOK_SECONDS:.0f} s"
    return None, f"the ranks could not be read: {child.detail or child.ending}"
