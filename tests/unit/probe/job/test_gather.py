"""Looks put together: ranks that nothing names, named by what is left; processes that begin and end."""

from dataclasses import replace

from gpudiag.model.codec import encode
from gpudiag.model.job import ChildSeen, Job, KnownBy, ProcessLook, RankSeen
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.job.gather import _join, _read, _with_last_number, join_looks

UNKNOWN = Missing(MissingReason.NOT_SUPPORTED, "its rank is unknown")


def rank(pid: int, number: Reading[int]) -> RankSeen:
    return RankSeen(pid, number, number, KnownBy.NOTHING, "python train.py", 9.0, "0")


def test_the_only_rank_without_a_number_has_the_one_that_is_left() -> None:
    ranks = [rank(10, 0), rank(11, UNKNOWN), rank(12, 2)]
    assert [one.rank for one in _with_last_number(ranks, 3)] == [0, 1, 2]
    assert _with_last_number(ranks, 4) == ranks  # one is gone, or on another machine
    assert _with_last_number(ranks, UNKNOWN) == ranks
    two = [ranks[0], ranks[1], replace(ranks[2], rank=UNKNOWN)]
    assert _with_last_number(two, 3) == two


def look(pid: int, at_seconds: float) -> ProcessLook:
    return ProcessLook(at_seconds, pid, "S", 0.0)


def test_a_process_that_began_after_the_job_was_listed_has_the_looks_that_were_made_of_it() -> None:
    job = Job(
        "job", "node7", "torchrun", 9, 1, None, (replace(rank(10, 0), children=(ChildSeen(20, 10, "a"),)),)
    )
    sent = _read(
        [
            ("jobs", [encode(job)], 0),
            ("look", 20, 10, 0, encode(look(20, 0.0))),
            ("children", 10, [encode(ChildSeen(21, 10, "b"))]),
            ("look", 20, 10, 1, encode(look(20, 1.0))),
            ("look", 21, 10, 1, encode(look(21, 1.0))),
        ]
    )
    assert sent is not None
    (seen,) = _join(sent.jobs[0], sent, 2).ranks
    assert [(one.pid, len(one.looks)) for one in seen.children] == [(20, 2), (21, 1)]


def test_of_a_job_that_is_looked_at_again_the_children_of_now_count() -> None:
    def job(*pids: int) -> Job:
        children = tuple(ChildSeen(pid, 10, "a", (look(pid, 0.0),)) for pid in pids)
        return Job(
            "job",
            "node7",
            "torchrun",
            9,
            1,
            None,
            (replace(rank(10, 0), looks=(look(10, 0.0),), children=children),),
        )

    (seen,) = join_looks(job(20, 21), job(21, 22), 5.0).ranks
    assert [(one.pid, [at.at_seconds for at in one.looks]) for one in seen.children] == [
        (21, [0.0, 5.0]),
        (22, [5.0]),
    ]
