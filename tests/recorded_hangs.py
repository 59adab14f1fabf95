"""Looks at real jobs that hung, recorded by benchmarks/hang_matrix.py (tests/corpus/hang)."""

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gpudiag.model.codec import decode
from gpudiag.model.job import Frame, Job, ProcessLook, RankSeen, ThreadLook
from gpudiag.model.job_state import JobState, RasLooks
from gpudiag.model.reading import Missing
from gpudiag.probe.job.py_spy import parse_native as parse_py_spy_native
from gpudiag.probe.job.ras_answers import parse_ras_answer

CORPUS = Path(__file__).parent / "corpus/hang"


@cache
def recorded(name: str) -> Job:
    """The job of that recording."""
    with gzip.open(CORPUS / f"{name}.json.gz", "rt") as file:
        job: Job = decode(Job, json.load(file))
    return job


def seen_early(job: Job) -> Job:
    """The job as its first two looks saw it, when its threads had stood there for 0.9 s."""
    ranks = (replace(rank, looks=tuple(map(_ran_lately, rank.looks[:2]))) for rank in job.ranks)
    return replace(job, ranks=tuple(ranks))


def _ran_lately(look: ProcessLook) -> ProcessLook:
    return replace(look, threads=tuple(replace(one, last_ran_seconds_ago=0.9) for one in look.threads))


# Jobs on one H100 or H200, torch 2.11 with NCCL 2.32.3: NAME.job.json.gz holds two looks a second apart, and
# NAME.facts.json.gz what was seen of the same ranks some seconds later: threads, native stacks, NVML, the
# answers of NCCL's RAS.
ON_GPUS = CORPUS / "gpu"


@cache
def recorded_on_gpus(name: str) -> Job:
    """The two looks at that job, and nothing else."""
    with gzip.open(ON_GPUS / f"{name}.job.json.gz", "rt") as file:
        job: Job = decode(Job, json.load(file))
    return job


@cache
def facts_of(name: str) -> dict[str, Any]:
    """What else was seen of that job."""
    with gzip.open(ON_GPUS / f"{name}.facts.json.gz", "rt") as file:
        facts: dict[str, Any] = json.load(file)
    return facts


def with_ras(job: Job, name: str, *, as_json: bool = True) -> Job:
    """The job with what NCCL's RAS answered, twice: the ranks were still, and so were its counts."""
    told = facts_of(name)["ras_json" if as_json else "ras_text"]
    if "error" in told:
        return job
    look = parse_ras_answer(told["text"].encode())
    looks = RasLooks("localhost:28028", (look, replace(look, at_seconds=1.0)))
    return replace(job, state=JobState(ras=(looks,)))


def with_native(job: Job, name: str) -> Job:
    """The job with the C functions of each main thread, by py-spy, in the last look."""
    told = {one["pid"]: one["py_spy_native_json"].get("out", "") for one in facts_of(name)["ranks"]}
    return replace(job, ranks=tuple(_with_native(rank, told.get(rank.pid, "")) for rank in job.ranks))


def _with_native(rank: RankSeen, text: str) -> RankSeen:
    native = parse_py_spy_native(text, rank.pid)
    if isinstance(native, Missing):  # of a rank that is stopped, which py-spy could not stop again
        return rank
    last = rank.last
    threads = tuple(replace(one, native=native) if one.tid == last.pid else one for one in last.threads)
    return replace(rank, looks=(*rank.looks[:-1], replace(last, threads=threads)))


def looked_at_again(job: Job, name: str) -> Job:
    """The job with a third look: the threads and Python lines that the facts hold of some seconds later."""
    told = {one["pid"]: one for one in facts_of(name)["ranks"]}
    after = max(1.0, *(_spun_seconds(rank, told[rank.pid]) for rank in job.ranks))
    return replace(job, ranks=tuple(_with_third(rank, told[rank.pid], after) for rank in job.ranks))


def _spun_seconds(rank: RankSeen, facts: dict[str, Any]) -> float:
    """The time since the last look, by the processor time of a main thread that spins."""
    run = facts["looks"][1]["threads"][str(rank.pid)]["schedstat"].split()
    main = rank.last.main
    return int(run[0]) / 1e9 - main.cpu_seconds if main is not None and main.state == "R" else 0.0


def _with_third(rank: RankSeen, facts: dict[str, Any], after: float) -> RankSeen:
    threads = facts["looks"][1]["threads"]
    python = {one["os_thread_id"]: one for one in json.loads(facts["py_spy"]["out"])}
    seen = []
    for thread in rank.last.threads:
        later = threads.get(str(thread.tid))
        if later is None:
            continue
        ran, _, switches = map(int, later["schedstat"].split()[:3])
        read = python.get(thread.tid)
        still = switches == thread.switches
        ago = thread.last_ran_seconds_ago
        seen.append(
            replace(
                thread,
                state=later["stat"].rpartition(")")[2].split()[0],
                cpu_seconds=ran / 1e9,
                switches=switches,
                holds_gil=read["owns_gil"] if read is not None else None,
                frames=_frames_later(thread, read),
                last_ran_seconds_ago=ago + after if still and isinstance(ago, float) else 0.0,
            )
        )
    look = replace(rank.last, at_seconds=rank.last.at_seconds + after, threads=tuple(seen))
    return replace(rank, looks=(*rank.looks, look))


def _frames_later(thread: ThreadLook, read: dict[str, Any] | None) -> tuple[Frame, ...]:
    """The frames of the last look where the lines are the same; else lines alone, without variables."""
    if read is None:
        return thread.frames
    lines = [(one["filename"], one["name"].rpartition(".")[2], one["line"]) for one in read["frames"]]
    if lines == [(one.file, one.function.rpartition(".")[2], one.line) for one in thread.frames]:
        return thread.frames
    return tuple(Frame(one["filename"], one["name"], one["line"]) for one in read["frames"])
