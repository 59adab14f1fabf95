"""Looks at real jobs that hung, recorded by benchmarks/hang_matrix.py (tests/corpus/hang)."""

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from gpudiag.model.codec import decode
from gpudiag.model.job import Job, ProcessLook

CORPUS = Path(__file__).parent / "corpus/hang"


@cache
def recorded(name: str) -> Job:
    """The job of that recording."""
    with gzip.open(CORPUS / f"{name}.json.gz", "rt") as file:
        job: Job = decode(Job, json.load(file))
    return job


def seen_early(job: Job) -> Job:
    """The job as it was seen when its threads had stood there for 0.9 s."""
    ranks = (replace(rank, looks=tuple(map(_ran_lately, rank.looks))) for rank in job.ranks)
    return replace(job, ranks=tuple(ranks))


def _ran_lately(look: ProcessLook) -> ProcessLook:
    return replace(look, threads=tuple(replace(one, last_ran_seconds_ago=0.9) for one in look.threads))
