"""A look at the whole job, as `gpudiag hang` takes it, in a guarded child: the agent's own loop goes on meanwhile."""

from collections.abc import Callable
from typing import Any

from gpudiag.checks.job.stall_rule import WORK_LIMITS
from gpudiag.model.codec import decode, encode
from gpudiag.model.job import JobVerdict
from gpudiag.probe.guard import GuardedChild, start_guarded

LOOK_SECONDS = 30.0  # two looks take 2 s, and ten times as long on a machine with a load of 80


def start_look(pid: int, limit_seconds: float, still_seconds: float | None = None) -> GuardedChild:
    """A child that looks at the job of a process, and judges it as `gpudiag hang` does.

    The limit is for what only time tells: ranks that all stand still (once), work (six times), an endless loop. A rank that others wait
    for must not move for `still_seconds` of the look, as long as in `gpudiag hang` where it is not given; the agent has seen already that the
    others have waited for longer.
    """
    return start_guarded("gpudiag.runs.job_run.look:stream_look", pid, limit_seconds, still_seconds)


def stream_look(
    emit: Callable[[Any], None], pid: int, limit_seconds: float, still_seconds: float | None
) -> None:
    """Send `("verdict", document)`, or `("none",)` where the job has ended."""
    from gpudiag.checks.job.hang_limits import (
        HangLimits,
    )  # a look is rare, and what it takes is much: not at each start
    from gpudiag.runs.hang import watch_job

    usual = HangLimits()
    limits = HangLimits(
        still=min(limit_seconds, usual.still if still_seconds is None else still_seconds),
        idle=limit_seconds,
        told=min(limit_seconds, usual.told),
        work=WORK_LIMITS * limit_seconds,
        loop=min(limit_seconds, usual.loop),
    )
    verdict = watch_job(pid, limits)
    emit(("none",) if verdict is None else ("verdict", encode(verdict)))


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
