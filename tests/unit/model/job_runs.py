"""A document of `gpudiag run` for tests: a job that stood still, and whose ranks were then ended."""

from datetime import datetime, timedelta
from typing import Any

from gpudiag.checks.job.run import RunFacts, judge_run
from gpudiag.compat import UTC
from gpudiag.model.finding import Outcome
from gpudiag.model.job_run import (
    JobRun,
    RankEnd,
    RankRecord,
    RankShare,
    SignalSeen,
    Stall,
    StepTime,
    WatchCost,
)
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason

START = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


def make_rank(number: int, **more: Any) -> RankRecord:
    """A rank that SIGTERM ended after a minute."""
    values: dict[str, Any] = (
        {"rank": number, "pid": 100 + number, "started": START}
        | {"end": RankEnd.KILLED, "ended": START + timedelta(minutes=1)}
        | {"exit_code": -15, "signal": "SIGTERM", "order": number + 1, "attempt": 1}
    )
    return RankRecord(**{**values, **more})


def make_job_run(**more: Any) -> JobRun:
    """The document, with a stall that could not be looked at."""
    ranks = (
        make_rank(0),
        make_rank(1, exit_code=Missing(MissingReason.NOT_SUPPORTED, "collected"), end=RankEnd.ENDED),
    )
    stall = Stall(
        START + timedelta(seconds=20),
        25.0,
        15.0,
        reported=True,
        ended=False,
        over=None,
        look=None,
        unseen="py-spy",
    )
    signals = (SignalSeen("SIGTERM", START + timedelta(seconds=59), passed_on=True),)
    step = StepTime(0.5, 90, 0.9, 60.0)
    findings = judge_run(RunFacts("a1", START, 61.0, 1, ranks, signals, (stall,), (), step, (), 40, ()))
    values: dict[str, Any] = (
        {"outcome": Outcome.FAIL, "headline": findings[0].message, "findings": findings}
        | {"command": ("torchrun", "train.py"), "host": "a1", "run_id": "id", "started": START}
        | {"seconds": 61.0, "exit_status": 1, "signal": None, "torch_version": "2.13"}
        | {"variables": {"TORCH_FR_BUFFER_SIZE": "2000"}, "folder": None, "world_size": 2, "ranks": ranks}
        | {"steps": step, "shares": (RankShare(0, 0.2, 0.7, 0.1, 0.0, "train.py:3 in main", 9),)}
        | {"stalls": (stall,), "signals": signals, "kernel": (), "explained": None}
        | {"cost": WatchCost(1.0, NOT_ASKED, 1, 40), "unseen": ("the kernel log",)}
    )
    return JobRun(**{**values, **more})
