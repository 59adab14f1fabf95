"""Ranks behind a lock of another rank, and ranks that stand still beside others; recorded, and changed."""

from collections.abc import Callable
from dataclasses import replace

from gpudiag.checks.job.verdict import judge_job
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Job, JobVerdict, ProcessLook, ThreadLook
from tests.recorded_hangs import recorded


def judged(name: str) -> JobVerdict:
    return judge_job(recorded(f"locks/{name}"))


def with_main(job: Job, rank: int, change: Callable[[ThreadLook], ThreadLook]) -> Job:
    """The job with the main thread of one rank changed in every look."""

    def look(one: ProcessLook) -> ProcessLook:
        threads = tuple(change(thread) if thread.tid == one.pid else thread for thread in one.threads)
        return replace(one, threads=threads)

    ranks = (
        replace(one, looks=tuple(map(look, one.looks))) if one.rank == rank else one for one in job.ranks
    )
    return replace(job, ranks=tuple(ranks))


def waited(seconds: float) -> Callable[[ThreadLook], ThreadLook]:
    return lambda main: replace(main, last_ran_seconds_ago=seconds)


def test_of_ranks_behind_a_lock_the_one_that_holds_it_is_to_blame() -> None:
    verdict = judged("chain")
    assert [(one.code, getattr(one.subject, "rank", None)) for one in verdict.findings] == [("hang.sleep", 2)]
    assert "that ranks 0 and 3 wait in" in verdict.headline
    (place,) = (place for place in verdict.places if place.ranks == (1,))
    assert place.words.endswith("/lock (held by rank 2, pid 4381)")


def test_a_process_of_another_machine_with_the_number_of_the_holder_does_not_hold_the_lock() -> None:
    job = recorded("locks/chain_ok")
    ranks = (replace(one, host="n2" if one.rank == 2 else "n1") for one in job.ranks)
    verdict = judge_job(replace(job, ranks=tuple(ranks)))
    assert [(one.code, getattr(one.subject, "rank", None)) for one in verdict.findings] == [("hang.lock", 1)]


def test_a_rank_behind_a_lock_of_one_that_moves_is_no_hang() -> None:
    assert judged("chain_ok").outcome is Outcome.PASS


def test_a_rank_that_holds_a_lock_and_waits_for_its_waiter_leaves_the_waiter_to_blame() -> None:
    job = recorded("locks/chain")
    of_rank = {one.rank: one for one in job.ranks}
    holder, waiting = of_rank[2], of_rank[0]
    moved = (
        replace(
            one, pid=holder.pid, threads=tuple(_as_of(thread, one.pid, holder.pid) for thread in one.threads)
        )
        for one in waiting.looks
    )
    ranks = {**of_rank, 2: replace(holder, looks=tuple(moved))}
    verdict = judge_job(replace(job, ranks=tuple(ranks.values())))
    assert verdict.outcome is Outcome.FAIL
    assert [(one.code, getattr(one.subject, "rank", None)) for one in verdict.findings] == [("hang.lock", 1)]
    assert "held by rank 2" in verdict.headline


def _as_of(thread: ThreadLook, pid: int, other: int) -> ThreadLook:
    return replace(thread, tid=other if thread.tid == pid else thread.tid)


def test_a_rank_at_a_lock_of_no_rank_beside_one_that_moves_is_named_and_later_blamed() -> None:
    verdict = judged("outside")
    assert [one.code for one in verdict.findings] == ["hang.still"]
    assert getattr(verdict.findings[0].subject, "rank", None) == 1
    for words in ("waits for the lock on the file", "70 s so far", "no rank waits for it", "after 300 s"):
        assert words in verdict.headline
    job = recorded("locks/outside")
    assert judge_job(with_main(job, 1, waited(5.0))).outcome is Outcome.PASS
    late = judge_job(with_main(job, 1, waited(301.0)))
    assert (late.outcome, late.findings[0].code) == (Outcome.FAIL, "hang.lock")


def test_a_rank_that_may_wait_for_others_beside_one_that_moves_is_left_alone() -> None:
    def accepts(main: ThreadLook) -> ThreadLook:
        return replace(main, syscall="accept4", awaited=None, last_ran_seconds_ago=400.0)

    assert judge_job(with_main(recorded("locks/outside"), 1, accepts)).outcome is Outcome.PASS


def test_a_rank_behind_the_lock_of_one_that_compiles_waits_for_the_lock() -> None:
    """Inductor's first compile: one of the ranks builds a kernel, and the others want the same one."""
    verdict = judged("compile")
    assert verdict.outcome is Outcome.PASS
    (place,) = (place for place in verdict.places if place.ranks == (0,))
    assert place.words.startswith("waits for the lock file ")
    assert "held by rank 1" in place.words
    assert place.words.endswith(", to compile")
