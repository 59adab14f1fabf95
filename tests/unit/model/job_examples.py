"""A job that hangs, as recorded, and the report on it."""

import gzip
import json
from pathlib import Path

from gpudiag.model.codec import decode
from gpudiag.model.evidence import Evidence, RankSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.job import HangReport, Job, JobVerdict, Place

_RECORDED = Path(__file__).parents[2] / "corpus/hang/sub_skip.json.gz"


def make_job() -> Job:
    with gzip.open(_RECORDED, "rt") as file:
        return decode(Job, json.load(file))


def make_hang_report() -> HangReport:
    finding = Finding(
        "hang.sleep",
        Outcome.FAIL,
        Severity.TRIAGE,
        Category.SW_OTHER,
        Owner.JOB,
        RankSubject(2, "node7"),
        "rank 2 sleeps",
        (Evidence("process of rank 2", "pid 7", source="/proc"),),
        "Look at its line.",
        blocks_jobs=False,
    )
    place = Place((2,), "sleep", "sleeps", "train.py:3", ("train.py:3: sleep(9)",), 4.5)
    verdict = JobVerdict(
        "torchrun 6: train.py",
        Outcome.FAIL,
        "rank 2 sleeps",
        (finding,),
        (place,),
        ("all 4 ranks are there",),
        (),
        make_job(),
    )
    return HangReport(
        Outcome.FAIL, "node7", "2026-11-25T01:00:00+00:00", 2.1, (verdict,), notes=("nothing was stopped",)
    )
