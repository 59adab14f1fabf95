"""Ranks that their control group's quota throttles, recorded with 3 % of a processor, and changed."""

from collections.abc import Callable
from dataclasses import replace

from gpudiag.checks.job.verdict import judge_job
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Job, JobVerdict, ProcessLook, QuotaLook, RankSeen, ThreadLook
from tests.recorded_hangs import recorded

GROUP = "/sys/fs/cgroup/cpu/job"
SLOW = {
    "throttled": ("rank 1 is not in the all_reduce", "computes at slow.py:12 in prepare"),
    "throttled_loader": ("rank 1 is not in the all_reduce", "computes at load.py:12 in Rows.__getitem__"),
    "throttled_call": ("ranks 0 and 1 wait in all_reduce at big.py:7",),
}


def with_looks(job: Job, change: Callable[[ProcessLook], ProcessLook]) -> Job:
    """The job with every look at its ranks and their children changed."""

    def of(seen: RankSeen) -> RankSeen:
        children = tuple(replace(one, looks=tuple(map(change, one.looks))) for one in seen.children)
        return replace(seen, looks=tuple(map(change, seen.looks)), children=children)

    return replace(job, ranks=tuple(map(of, job.ranks)))


def codes(verdict: JobVerdict) -> list[str]:
    return [one.code for one in verdict.findings]


def test_a_throttled_rank_is_slow_and_its_group_and_the_remedy_are_named() -> None:
    for name, words in SLOW.items():
        verdict = judge_job(recorded(name))
        assert verdict.outcome is Outcome.WARN, verdict.headline
        assert codes(verdict) == ["hang.throttled"]
        assert f"the control group {GROUP} was throttled in" in verdict.headline
        assert "(quota: 0.03 processors)" in verdict.headline
        assert not [one for one in words if one not in verdict.headline], verdict.headline
        assert f"`echo -1 > {GROUP}/cpu.cfs_quota_us`" in verdict.findings[0].remedy
        assert any(f"control group {GROUP} was throttled" in place.words for place in verdict.places)


def test_version_2_has_another_file_for_the_quota() -> None:
    def of_version_2(look: ProcessLook) -> ProcessLook:
        quotas = (replace(one, file="/sys/fs/cgroup/job.slice/cpu.max") for one in look.quotas)
        return replace(look, quotas=tuple(quotas))

    verdict = judge_job(with_looks(recorded("throttled"), of_version_2))
    assert "the control group /sys/fs/cgroup/job.slice was throttled" in verdict.headline
    assert "`echo max > /sys/fs/cgroup/job.slice/cpu.max`" in verdict.findings[0].remedy


def test_a_quota_that_holds_nothing_back_is_no_reason() -> None:
    def unthrottled(look: ProcessLook) -> ProcessLook:
        return replace(look, quotas=tuple(replace(one, throttled_periods=7) for one in look.quotas))

    def without_quota(look: ProcessLook) -> ProcessLook:
        return replace(look, quotas=())

    def few_periods(look: ProcessLook) -> ProcessLook:
        return replace(look, quotas=tuple(_with_periods(one) for one in look.quotas))

    def _with_periods(quota: QuotaLook) -> QuotaLook:
        return replace(quota, periods=quota.periods // 5, throttled_periods=quota.throttled_periods // 5)

    for change in (unthrottled, without_quota, few_periods):
        for name in SLOW:
            verdict = judge_job(with_looks(recorded(name), change))
            assert "hang.throttled" not in codes(verdict), (name, change, verdict.headline)


def test_a_rank_that_takes_no_processor_time_is_not_throttled_by_what_its_group_does() -> None:
    def idle(look: ProcessLook) -> ProcessLook:
        threads = tuple(replace(one, cpu_seconds=1.0, state="S") for one in look.threads)
        return replace(look, cpu_seconds=1.0, threads=threads)

    for name in SLOW:
        assert "hang.throttled" not in codes(judge_job(with_looks(recorded(name), idle))), name


def test_a_throttled_rank_in_an_endless_loop_is_blamed_after_300_s_and_not_after_5() -> None:
    job = recorded("throttled")

    def loops(look: ProcessLook) -> ProcessLook:
        return replace(look, threads=tuple(map(in_loop, look.threads)))

    def in_loop(thread: ThreadLook) -> ThreadLook:
        frames = (
            replace(one, inside=("while True (line 1)",), text="while True: x += 1") for one in thread.frames
        )
        return replace(thread, frames=tuple(frames))

    def waiting(seconds: float) -> Job:
        def wait(look: ProcessLook) -> ProcessLook:
            threads = (
                replace(one, last_ran_seconds_ago=seconds) if one.state == "S" else one
                for one in look.threads
            )
            return replace(look, threads=tuple(threads))

        ranks = (
            with_looks(replace(job, ranks=(one,)), loops if one.rank == 1 else wait).ranks[0]
            for one in job.ranks
        )
        return replace(job, ranks=tuple(ranks))

    assert codes(judge_job(waiting(20.0))) == ["hang.throttled"]
    assert codes(judge_job(waiting(400.0))) == ["hang.loop"]
