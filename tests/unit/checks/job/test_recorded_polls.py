"""Looks at real jobs whose waits poll, or whose ranks never came, recorded by `gpudiag hang --json`, and
judged again with what would be healthy beside them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.verdict import is_decided, judge_job
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Awaited, Frame, Job, ProcessLook, RankSeen, ThreadLook
from gpudiag.model.job_agent import AgentSeen
from tests.recorded_hangs import recorded
from tests.walking import walk


@dataclass(frozen=True)
class Recorded:
    """A recording, and what must be said of it: code, rank, and words of the headline."""

    name: str
    code: str
    rank: int | None
    words: tuple[str, ...] = ()

    def says(self, *words: str) -> "Recorded":
        return replace(self, words=words)


RECORDED = (
    Recorded("polls/loaders", "hang.loader", None).says(
        "ranks 0 and 1", "worker", "job.py:21 in Rows.__getitem__"
    ),
    Recorded("polls/ring", "hang.network", 2).says(
        "answer from 127.0.0.1:", "job.py:56 in load_adapter", "ranks 0 and 1 only poll"
    ),
    Recorded("polls/lock_file", "hang.lock", 0).says(
        "model.safetensors.lock", "its owner is gone", "job.py:10 in fetch", "ranks 1-3 wait"
    ),
    Recorded("polls/missing_rank", "hang.never_joined", 3).says(
        "rank 3 is not there", "3 of 4 ranks", "ranks 0-2 wait in the init_process_group"
    ),
)


@walk(RECORDED, name=lambda one: one.name)
def test_each_recorded_job_is_judged_right(one: Recorded) -> None:
    verdict = judge_job(recorded(one.name))
    assert verdict.outcome is Outcome.FAIL, verdict.headline
    assert verdict.findings[0].code == one.code
    assert getattr(verdict.findings[0].subject, "rank", None) == one.rank
    assert not [words for words in one.words if words not in verdict.headline], verdict.headline
    assert is_decided(verdict)


def test_the_remedy_names_the_lock_file() -> None:
    finding = judge_job(recorded("polls/lock_file")).findings[0]
    assert "`rm /home/ann/job/out/model.safetensors.lock`" in finding.remedy


def test_a_lock_file_whose_owner_lives_is_not_to_be_removed() -> None:
    held = Awaited("lock file", "/data/a.lock", "held by pid 12 (python train.py)")
    job = _with_main(
        recorded("polls/lock_file"), lambda main: replace(main, awaited=held) if main.awaited else main
    )
    finding = judge_job(job).findings[0]
    assert "held by pid 12" in finding.message
    assert "rm " not in finding.remedy


def test_a_rank_that_may_still_come_is_told_and_not_accused() -> None:
    ranks = recorded("polls/missing_rank")
    young = replace(ranks, ranks=tuple(replace(one, started_seconds_ago=12.0) for one in ranks.ranks))
    verdict = judge_job(young)
    assert verdict.outcome is Outcome.WARN, verdict.headline
    assert "after 30 s" in verdict.headline


def test_the_others_of_a_rank_that_never_came_are_shown_with_the_time_until_they_give_up() -> None:
    def with_timeout(main: ThreadLook) -> ThreadLook:
        frames = (
            replace(one, timeout_seconds=1800.0) if one.function == "init_process_group" else one
            for one in main.frames
        )
        return replace(main, last_ran_seconds_ago=61.0, frames=tuple(frames))

    job = recorded("polls/missing_rank")
    headline = judge_job(_with_main(job, with_timeout)).headline
    assert "they give up after 30 min (the process group's timeout), 29 min from now" in headline
    assert "give up" not in judge_job(job).headline  # where it was not read


def waits(agent: AgentSeen, **changes: Any) -> Job:
    """The recorded job of one torchrun that waits for another, with these changes to it."""
    return replace(recorded("polls/missing_node"), agent=replace(agent, **changes))


def test_a_node_may_come_until_torchrun_nearly_gives_up() -> None:
    agent = recorded("polls/missing_node").agent
    assert agent is not None
    for job in (
        waits(agent),  # since 48 s
        waits(agent, since_seconds=500.0),
        waits(agent, agents_here=(*agent.agents_here, (99, 4.0)), least_nodes=3),
        waits(agent, is_loopback=True),
        waits(agent, is_loopback=True, step_nodes=1),
        waits(agent, step_nodes=2),
    ):
        verdict = judge_job(job)
        assert verdict.outcome is Outcome.WARN, verdict.headline
        assert "rendezvous at 127.0.0.1:" in verdict.headline
        assert "id 77) for 1 of" in verdict.headline
        assert "gives up after 10 min" in verdict.headline
    for changes in (
        {"since_seconds": 545.0},
        {"gives_up_seconds": 50.0},
        {"hosts_endpoint": False, "is_connected": False, "gives_up_seconds": 50.0},
    ):
        verdict = judge_job(waits(agent, **changes))
        assert [one.code for one in verdict.findings] == ["hang.never_joined"], changes
        assert verdict.outcome is Outcome.FAIL
    assert judge_job(waits(agent), HangLimits(node=30.0)).outcome is Outcome.FAIL


def test_machines_of_one_slurm_step_that_wait_at_their_own_localhost_never_meet() -> None:
    agent = recorded("polls/missing_node").agent
    assert agent is not None
    verdict = judge_job(waits(agent, is_loopback=True, step_nodes=2))
    assert verdict.findings[0].code == "hang.never_joined"
    assert "its Slurm step has 2 machines, and each waits at its own 127.0.0.1" in verdict.headline
    assert "--rdzv-endpoint" in verdict.findings[0].remedy
    young = judge_job(waits(agent, is_loopback=True, step_nodes=2, since_seconds=1.0))
    assert young.outcome is Outcome.WARN


def test_who_has_joined_elsewhere_and_an_endpoint_that_does_not_answer_are_told() -> None:
    node = recorded("polls/missing_node")
    assert node.agent is not None
    elsewhere = replace(node.agent, least_nodes=4, most_nodes=4, nodes_elsewhere=("10.0.0.7", "10.0.0.8"))
    assert "for 1 of 4 nodes" in judge_job(replace(node, agent=elsewhere)).headline
    assert "10.0.0.7, 10.0.0.8" in judge_job(replace(node, agent=elsewhere)).headline
    assert "only a torchrun of this machine can" in judge_job(waits(node.agent, is_loopback=True)).headline
    lost = replace(node.agent, hosts_endpoint=False, is_connected=False)
    assert "cannot reach the rendezvous" in judge_job(replace(node, agent=lost)).headline


def test_ranks_of_a_job_on_several_machines_may_be_elsewhere() -> None:
    job = replace(recorded("polls/missing_rank"), master="10.0.0.7:29500")
    headline = judge_job(job).headline
    assert "rank 3 has not joined" in headline
    assert "on this machine" in headline
    with_nodes = replace(job, expected=(0, 1, 2), world_size=6)
    assert "ranks 3-5 have not joined (node 1)" in judge_job(with_nodes).headline


def test_a_loop_that_polls_inside_of_a_for_that_goes_on_is_healthy() -> None:
    # `for _ in range(...)` around `while True` around a get with a timeout.
    job = recorded("polls/healthy_batches")
    verdict = judge_job(job)
    assert (verdict.outcome, "4 of 4 ranks move" in verdict.headline) == (Outcome.PASS, True)
    blind = _with_main(job, lambda main: replace(main, frames=tuple(_without_numbers(main))))
    assert judge_job(blind).outcome is Outcome.PASS  # gloo's thread shows that collectives were made
    stands = replace(blind, ranks=tuple(_without_switches(rank) for rank in blind.ranks))
    assert judge_job(stands).outcome is Outcome.WARN  # the same while nothing comes: not yet a hang


def _without_switches(rank: RankSeen) -> RankSeen:
    looks = (
        replace(look, threads=tuple(replace(one, switches=0) for one in look.threads)) for look in rank.looks
    )
    return replace(rank, looks=tuple(looks))


def _without_numbers(main: ThreadLook) -> list[Frame]:
    return [replace(frame, variables=(), mark="") for frame in main.frames]


def test_a_rank_that_still_starts_is_no_missing_one() -> None:
    job = recorded("polls/missing_rank")
    starting = replace(
        job.ranks[1], rank=3, pid=7, looks=tuple(_importing(one, 7) for one in job.ranks[1].looks)
    )
    assert judge_job(replace(job, ranks=(*job.ranks, starting))).outcome is not Outcome.FAIL


def _importing(look: ProcessLook, pid: int) -> ProcessLook:
    main = look.main
    assert main is not None
    frames = (replace(main.frames[-1], line=1, text="import torch"),)
    own = replace(
        main,
        tid=pid,
        frames=frames,
        state="R",
        cpu_seconds=main.cpu_seconds + look.at_seconds,
        mark=str(look.at_seconds),
    )
    return replace(look, pid=pid, threads=(own,))


def test_polls_beside_a_rank_that_goes_on_accuse_nobody() -> None:
    job = recorded("polls/ring")
    moving = tuple(replace(one, written_bytes=int(1e6 * one.at_seconds)) for one in job.ranks[2].looks)
    assert (
        judge_job(replace(job, ranks=(*job.ranks[:2], replace(job.ranks[2], looks=moving)))).outcome
        is Outcome.PASS
    )


def test_a_ring_that_turns_moves() -> None:
    job = recorded("polls/ring")

    def turned(rank: RankSeen) -> RankSeen:
        return replace(rank, looks=tuple(_with_outer_mark(look) for look in rank.looks))

    verdict = judge_job(replace(job, ranks=tuple(turned(rank) for rank in job.ranks[:2]) + job.ranks[2:]))
    assert verdict.outcome is not Outcome.FAIL


def _with_outer_mark(look: ProcessLook) -> ProcessLook:
    """The look with other objects in the variables of the function that polls, as in another step."""
    main = look.main
    assert main is not None
    frames = tuple(
        replace(frame, mark=f"{look.at_seconds}") if frame.function == "main" else frame
        for frame in main.frames
    )
    changed = replace(main, frames=frames, mark=f"{look.at_seconds}", cpu_seconds=main.cpu_seconds)
    return replace(look, threads=tuple(changed if one is main else one for one in look.threads))


def test_slow_workers_of_a_loader_are_not_accused() -> None:
    job = recorded("polls/loaders")

    def asleep(seconds: float) -> Job:
        ranks = []
        for rank in job.ranks:
            children = tuple(
                replace(child, looks=tuple(_sleeping(look, seconds) for look in child.looks))
                for child in rank.children
            )
            ranks.append(replace(rank, children=children))
        return replace(job, ranks=tuple(ranks))

    assert judge_job(asleep(7.9)).outcome is Outcome.WARN
    assert judge_job(asleep(61.0)).outcome is Outcome.FAIL
    # As `gpudiag run --stall-after 15s` asks.
    assert judge_job(asleep(16.0), HangLimits(idle=15.0)).outcome is Outcome.FAIL


def _sleeping(look: ProcessLook, seconds: float) -> ProcessLook:
    main = look.main
    if main is None:
        return look
    slept = replace(main, syscall="clock_nanosleep", awaited=None, last_ran_seconds_ago=seconds)
    return replace(look, threads=tuple(slept if one is main else one for one in look.threads))


def _with_main(job: Job, change: Callable[[ThreadLook], ThreadLook]) -> Job:
    def changed(look: ProcessLook) -> ProcessLook:
        threads: tuple[ThreadLook, ...] = tuple(
            change(one) if one.tid == look.pid else one for one in look.threads
        )
        return replace(look, threads=threads)

    return replace(
        job, ranks=tuple(replace(rank, looks=tuple(map(changed, rank.looks))) for rank in job.ranks)
    )


def test_a_process_that_meets_nobody_yet_is_accused_as_late_as_a_missing_rank() -> None:
    """Lightning's rank 0 knows of no other rank until they have joined."""
    job = recorded("polls/missing_rank")
    alone = replace(job, ranks=job.ranks[:1], world_size=1, expected=None)
    for seconds, outcome in ((5.0, Outcome.WARN), (40.0, Outcome.FAIL)):
        since = _with_main(alone, lambda main, waited=seconds: replace(main, last_ran_seconds_ago=waited))
        assert judge_job(since).outcome is outcome
