"""Looks at real jobs of 4 gloo ranks under torchrun, recorded by benchmarks/hang_matrix.py, judged again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import pytest

from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.kinds import HANG_FINDINGS
from gpudiag.checks.job.verdict import is_decided, judge_job
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Frame, Job, JobVerdict, ProcessLook, RankSeen
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.waits import is_library
from tests.recorded_hangs import CORPUS, recorded, seen_early
from tests.walking import walk


@dataclass(frozen=True)
class Recorded:
    """A recording, and what must be said of it: the code, the rank, and the words of the headline."""

    name: str
    code: str
    rank: int | None
    words: tuple[str, ...]
    outcome: Outcome = Outcome.FAIL


RECORDED = (
    Recorded("sigstop", "hang.stopped", 2, ("SIGSTOP", "kinds.py:51 in load")),
    Recorded(
        "skipped", "hang.other_collective", 2, ("the barrier", "ranks 0, 1 and 3 wait in the all_reduce")
    ),
    Recorded(
        "other_collective", "hang.other_collective", 2, ("the all_gather (kinds.py:145 in wrong_collective)",)
    ),
    Recorded("other_size", "hang.other_size", 2, ("float32 [8388608]", "float32 [4194304]")),
    Recorded("loader_deadlock", "hang.loader", 2, ("worker", "kinds.py:42 in Samples.__getitem__")),
    Recorded("fifo", "hang.file", 2, ("the FIFO", "kinds.py:54 in load")),
    Recorded("lock", "hang.lock", 2, ("kinds.py:91 in wait_for_the_lock", "kinds.py:87")),
    Recorded("exception", "hang.exception_swallowed", 2, ("goes on after ValueError",)),
    Recorded("sleep", "hang.sleep", 2, ("sleeps at kinds.py:57 in load",)),
    Recorded("python_loop", "hang.loop", 2, ("while True", "count_for_ever")),
    Recorded("exit", "hang.at_exit", 2, ("has ended its script",)),
    Recorded("evaluation", "hang.works_alone", 2, ("evaluates (evaluate)", "300 s"), Outcome.WARN),
    Recorded("frozen_disk", "hang.file", 2, ("ext4", "uninterruptible sleep")),
    Recorded("d_state", "hang.file", 2, ("uninterruptible sleep", "in load")),
    Recorded("dead", "hang.rank_gone", 2, ("no longer has a process",)),
    Recorded("with_lock", "hang.lock", 1, ("shapes.py:83 in with_lock",)),
    Recorded("http_server", "hang.network", 1, ("waits for an answer from 127.0.0.1:",)),
    Recorded("raw_socket", "hang.network", 1, ("raw_socket",)),
    Recorded("queue_get", "hang.queue", 1, ("queue",)),
    Recorded("subprocess_run", "hang.program", 1, ("sleep 3600",)),
    Recorded("reads_input", "hang.queue", 1, ("a pipe",)),
    Recorded("flock", "hang.lock", 1, ("cache.lock", "held by")),
    Recorded("deep_in_library", "hang.lock", 1, ("in Slow.read",)),
    Recorded("future_result", "hang.lock", 1, ("sleeps_in_pool",)),
    Recorded("process_pool", "hang.lock", 1, ("its child, pid", "in tokenize")),
    Recorded("event_loop", "hang.wait", 1, ("its asyncio event loop", "in event_loop")),
    Recorded("barrier_on_rank", "hang.other_collective", 1, ("if dist.get_rank() == GUILTY",)),
    Recorded("object_list", "hang.sleep", 1, ("broadcast_object_list",)),
    Recorded("wrong_source", "hang.other_peer", 1, ("with src=3", "with src=0")),
    Recorded("breakpoint_left", "hang.debugger", 1, ("debugger's prompt",)),
    Recorded("fsdp", "hang.sleep", 1, ("shapes.py:402 in train_fsdp",)),
    Recorded("gathers", "hang.other_peer", 1, ("with dst=2", "rank 0 with dst=0")),
    Recorded("spin_wait", "hang.loop", 1, ("while not is_done()",)),
    Recorded("sqlite_lock", "hang.database", 1, ("sqlite_lock",)),
    Recorded("uneven_ddp", "hang.other_collective", 1, ("the all_gather_object",)),
    Recorded(
        "sub_skip",
        "hang.other_collective",
        1,
        ("not in the all_reduce of ranks 0 and 1", "that rank 0 waits in"),
    ),
    Recorded(
        "one_line",
        "hang.other_collective",
        1,
        ("rank 1 is not in the all_reduce of ranks 0 and 1 (groups.py:46", "rank 0 waits in", "groups.py:56"),
    ),
    Recorded(
        "swallowed_layer",
        "hang.exception_swallowed",
        1,
        ("rank 1 is not in the all_reduce of ranks 0 and 1", "goes on after ValueError", "groups.py:56"),
    ),
    Recorded(
        "extra_call",
        "hang.other_collective",
        1,
        ("rank 1 waits in the all_reduce of ranks 1-3 (groups.py:63", "ranks 2 and 3 are not in it"),
    ),
    Recorded("apart", "hang.sleep", 1, ("not in the all_reduce of ranks 0 and 1", "sleeps at groups.py:45")),
    Recorded("thread_main", "hang.sleep", 3, ("extra.py:38", "in the barrier")),
    Recorded(
        "polled_trainer", "hang.lock", 1, ("thread_trainer.py:13 in load", "thread_trainer.py:17 in train")
    ),
    Recorded("monitored", "hang.sleep", 1, ("monitored_barrier",)),
    Recorded(
        "saves",
        "hang.threads_share_group",
        None,
        (
            "the threads AsyncCheckpointExecutor_0 of ranks 0-3 wait in the gather_object (started by "
            "async_save at threads.py:57 in saves)",
            "of the default process group",
            "main threads of ranks 0-3 wait in the barrier (threads.py:59 in saves) of the same group",
        ),
    ),
    Recorded(
        "prefetch",
        "hang.threads_share_group",
        None,
        ("threads prefetch of ranks 0, 1 and 3 wait in the broadcast (threads.py:110", "the all_reduce"),
    ),
    Recorded("joined_loop", "hang.loop", 1, ("its thread tokenizer", "`while True` of threads.py:125")),
    Recorded(
        "made_by_some",
        "hang.group_made_by_some",
        None,
        ("all ranks of the job must call", "has the number 2 on rank 1 and 1 on rank 2"),
    ),
    Recorded(
        "mesh_of_members",
        "hang.group_made_by_some",
        None,
        (
            "threads.py:159 stands after `if dist.get_rank() not in members: continue (line 155)`",
            "process group 1 is ranks 0 and 1 on rank 0 and 3 ranks on ranks 2 and 3",
            "in the all_reduce of ranks 0 and 1 (threads.py:162 in mesh_of_members) for rank 1",
        ),
    ),
    Recorded(
        "compiler_fifo",
        "hang.compiler",
        2,
        ("a compiler that does not run at job.py:22 in main", "opens the FIFO /home/ann/cache.fifo"),
    ),
    Recorded(
        "lock_of_rank", "hang.lock", 1, ("data.lock (held by rank 0, pid 6291)", "that rank 0 waits in")
    ),
    Recorded("asks_rank", "hang.network", 1, ("the other end is rank 0, pid 8273)", "own_server.py:32")),
    Recorded("full_pipe", "hang.queue", 1, ("writes to a pipe that is full (the other end is pid 6488",)),
    Recorded(
        "child_full_pipe",
        "hang.program",
        1,
        ("the program, pid 29967", "writes to a pipe that is full (the other end is rank 1"),
    ),
    Recorded(
        "installed_trainer",
        "hang.file",
        1,
        ("installed_trainer.py:31, in Trainer.fetch of mytrain/__init__.py:10", "in Trainer.fit of mytrain/"),
    ),
    Recorded("lost_task", "hang.queue", 1, ("all 2 workers of its pool wait for a task", "its task is lost")),
    Recorded(
        "handler_sleeps", "hang.sleep", 1, ("an exception took it there: `except Exception (line 18)`",)
    ),
    Recorded("tries_in_for", "hang.sleep", 1, ("for_retry.py:16", "`except OSError (line 14)`")),
    Recorded("stopped_child", "hang.queue", 1, ("its child, pid 7968", "is stopped by a signal (SIGSTOP")),
    Recorded("tries_again", "hang.sleep", 1, ("in the loop `while True`", "an exception took it there")),
    Recorded(
        "one_more_call", "hang.calls_apart", None, ("rank 1 is 1 call behind rank 0", "async_forgotten.py:23")
    ),
    Recorded(
        "left_loop",
        "hang.other_collective",
        None,
        ("rank 1 is past `train()` (early_stop.py:29), where rank 0 still is",),
    ),
    Recorded(
        "main_evaluates_on_gpu",
        "hang.unknown",
        None,
        ("g_eval_master.py:26 stands under", "a rank makes a collective alone there, or a GPU"),
        Outcome.ERROR,
    ),
    Recorded(
        "skipped_step",
        "hang.other_collective",
        None,
        ("a rank that alone takes the `if torch.isnan(loss): continue (line 18)`",),
    ),
    Recorded("main_evaluates", "hang.other_collective", None, ("nanogpt_eval.py:27 stands under", "master")),
    Recorded(
        "compiled_branch",
        "hang.other_collective",
        1,
        ("ranks 0 and 2 wait in the collective of a compiled function (compiled_branch.py:4 in step)",),
    ),
    Recorded(
        "compiled_skip",
        "hang.other_collective",
        2,
        ("ranks 0 and 1 wait in the collective of a compiled function (inductor_skip.py:4 in norm), ",),
    ),
    Recorded(
        "remote_call",
        "hang.lock",
        1,
        ("not in the rpc_sync (rpc_event.py:10) that rank 0", "rpc_event.py:6 in serve_weights"),
    ),
    Recorded(
        "loader_loop",
        "hang.loop",
        1,
        ("in the loop `while True` of worker_loop.py:7: its loader's worker", "in Stream.filtered"),
    ),
    Recorded(
        "recv_twice", "hang.other_collective", None, ("the recv from rank 1", "rank 1 waits in the barrier")
    ),
    Recorded("store_key", "hang.other_collective", 0, ('the store\'s wait for the key "shard_map"',)),
    Recorded(
        "empty_results",
        "hang.other_collective",
        2,
        ("empty_results.py:7 stands under `if results (line 5)`",),
    ),
    Recorded("killed", "hang.rank_gone", 1, ("came to the rendezvous, and has ended since", "WORLD_SIZE 4")),
    Recorded("never_came", "hang.never_joined", 1, ("never started, or ended before",)),
    Recorded(
        "compiled_cpp", "hang.sleep", 1, ("the collective of a compiled function (comp.py:11 in norm)",)
    ),
    Recorded("dead_producer", "hang.queue", 1, ("job.py:159", "no other thread of it runs Python")),
    Recorded("name_server", "hang.network", 1, ("127.0.0.9:53 (a name server, by UDP) at job.py:95",)),
    Recorded(
        "pipeline_left",
        "hang.other_collective",
        1,
        ("rank 2 waits in the PipelineScheduleSingle.step", "rank 1 has left the loop `for step in range(10"),
    ),
    Recorded("other_tag", "hang.other_peer", None, ("with rank 1, tag 8 (", "with rank 0, tag 9 (")),
    Recorded("backoff", "hang.still", 1, ("an exception took it there", "may try again in"), Outcome.WARN),
    Recorded("signal_wait", "hang.wait", 1, ("waits for a signal at job2.py:93",)),
    Recorded("throttled", "hang.throttled", 1, ("quota: 0.03 processors", "slow.py:12"), Outcome.WARN),
    Recorded("throttled_loader", "hang.throttled", 1, ("load.py:12 in Rows",), Outcome.WARN),
    Recorded("throttled_call", "hang.throttled", None, ("ranks 0 and 1 wait",), Outcome.WARN),
)


# What no rank may be in, whatever else moves.
_BLAMED_AT_ONCE = ("hang.stopped", "hang.rank_gone", "hang.debugger")


def test_every_recording_is_judged() -> None:
    assert {case.name for case in RECORDED} == {
        path.name.removesuffix(".json.gz") for path in CORPUS.glob("*.json.gz")
    }


def judged(name: str, limits: HangLimits | None = None) -> JobVerdict:
    return judge_job(recorded(name), limits)


@walk(RECORDED, lambda case: case.name)
def test_rank_kind_and_line_are_named(case: Recorded) -> None:
    verdict = judged(case.name)
    first = verdict.findings[0]
    assert (verdict.outcome, first.code) == (case.outcome, case.code), verdict.headline
    assert getattr(first.subject, "rank", None) == case.rank
    for words in case.words:
        assert words in first.message, first.message


def test_that_a_rank_alone_receives_is_no_reason_by_itself() -> None:
    assert "stands under" not in judged("recv_twice").headline


def test_a_condition_of_one_of_two_lines_with_the_others_call_is_no_reason() -> None:
    assert "stands under" not in judged("pipeline_left").headline


def test_an_endless_loop_that_others_wait_for_not_yet_long_is_looked_at_again():
    """Between the time of a rank that stands still and that of a loop nothing is decided, and the rank is
    named.
    """
    verdict = judged("python_loop", HangLimits(still=0.1, loop=10_000.0))
    assert verdict.findings[0].code == "hang.still"
    assert getattr(verdict.findings[0].subject, "rank", None) == 2
    assert not is_decided(verdict)


def test_of_variables_that_differ_whole_numbers_are_named_with_their_ranks() -> None:
    """The time at which a rank began, or its loss, differs on every rank and tells nothing."""

    def with_variables(rank: RankSeen) -> RankSeen:
        step = "6" if rank.rank == 2 else "5"
        variables = (("began", f"37729.9{rank.rank}"), ("loss", f"nan{rank.rank}"), ("step_done", step))
        last = rank.last
        threads = tuple(
            replace(
                one,
                frames=tuple(replace(frame, variables=frame.variables + variables) for frame in one.frames),
            )
            for one in last.threads
        )
        return replace(rank, looks=(*rank.looks[:-1], replace(last, threads=threads)))

    job = recorded("skipped")
    message = judge_job(replace(job, ranks=tuple(map(with_variables, job.ranks)))).findings[0].message
    assert "step_done is 6 on rank 2 and 5 on ranks 0, 1 and 3" in message
    assert "began" not in message


@walk(RECORDED, lambda case: case.name)
def test_a_job_that_hung_a_moment_ago_is_not_called_healthy_without_another_look(case: Recorded) -> None:
    """Threads that ran 0.9 s ago: what moves may be healthy, what does not is looked at again, or blamed."""
    verdict = judge_job(seen_early(recorded(case.name)))
    moves = any(place.moves for place in verdict.places)
    assert moves or verdict.findings or not is_decided(verdict), verdict.headline


@walk(RECORDED, lambda case: case.name)
def test_nothing_is_called_healthy_once_the_stacks_are_gone(case: Recorded) -> None:
    """Where the ranks may not be looked into, that is said, with what to do, and never taken for health."""
    job = recorded(case.name)
    refused = Missing(MissingReason.NO_PERMISSION, "`sudo gpudiag hang 7`")
    blind = replace(
        job,
        ranks=tuple(
            replace(rank, looks=tuple(_blind(look, refused) for look in rank.looks)) for rank in job.ranks
        ),
    )
    verdict = judge_job(blind)
    assert verdict.outcome is not Outcome.PASS
    assert verdict.outcome is Outcome.FAIL or any(
        "sudo gpudiag hang 7" in reason for reason in verdict.unseen
    )


def _blind(look: ProcessLook, refused: Missing) -> ProcessLook:
    threads = tuple(replace(thread, frames=(), syscall="", awaited=None) for thread in look.threads)
    return replace(look, threads=threads, stacks=refused)


@walk(
    [case for case in RECORDED if case.outcome is Outcome.FAIL and case.code not in _BLAMED_AT_ONCE],
    lambda case: case.name,
)
def test_a_rank_whose_step_counter_moves_is_not_blamed(case: Recorded) -> None:
    """The same looks, with a variable of the outermost function that grew between them on every rank: a job
    that goes on.
    """
    job = recorded(case.name)
    moved = replace(
        job,
        ranks=tuple(
            replace(rank, looks=tuple(_counting(look, n) for n, look in enumerate(rank.looks)))
            for rank in job.ranks
        ),
    )
    verdict = judge_job(moved)
    assert verdict.outcome is Outcome.PASS, verdict.headline
    assert verdict.headline.startswith("not hanging: "), verdict.headline


def test_a_rank_that_tries_again_is_blamed_once_the_others_have_waited_for_ten_seconds() -> None:
    job = recorded("tries_in_for")
    waits = replace(job, ranks=tuple(_with_wait(rank, 6.0) if rank.rank == 0 else rank for rank in job.ranks))
    verdict = judge_job(waits)
    assert verdict.outcome is Outcome.WARN
    assert "it may try again: once the others have waited for 10 s" in verdict.headline
    assert not is_decided(verdict)


def test_a_rank_whose_next_attempt_is_near_is_blamed_once_the_others_have_waited_for_a_minute() -> None:
    """A download that is refused for a while; its sleep's end is known."""
    assert "once the others have waited for 60 s" in judged("backoff").headline
    job = recorded("backoff")
    late = replace(job, ranks=tuple(_with_wait(rank, 61.0) for rank in job.ranks))
    assert judge_job(late).outcome is Outcome.FAIL


def _with_wait(rank: RankSeen, seconds: float) -> RankSeen:
    last = rank.last
    threads = tuple(replace(one, last_ran_seconds_ago=seconds) for one in last.threads)
    return replace(rank, looks=(*rank.looks[:-1], replace(last, threads=threads)))


def test_a_sleep_that_a_rank_came_back_to_is_work_where_collectives_were_made_meanwhile() -> None:
    """Of a loop at a module's level no variable is seen: the thread woke up, and so did that of gloo."""
    job = recorded("handler_sleeps")

    def woken(look: ProcessLook, number: int, names: tuple[str, ...]) -> ProcessLook:
        threads = (
            replace(one, switches=one.switches + number) if one.name in names else one for one in look.threads
        )
        return replace(look, threads=tuple(threads))

    for names, outcome in (
        (("MainThread", "pt_gloo_runloop"), Outcome.WARN),  # it works while rank 0 waits
        (("MainThread",), Outcome.FAIL),  # it only wakes up
        (("pt_gloo_runloop",), Outcome.FAIL),
    ):
        ranks = (
            replace(rank, looks=tuple(woken(look, number, names) for number, look in enumerate(rank.looks)))
            if rank.rank == 1
            else rank
            for rank in job.ranks
        )
        assert judge_job(replace(job, ranks=tuple(ranks))).outcome is outcome, names


def _counting(look: ProcessLook, number: int) -> ProcessLook:
    threads = tuple(
        replace(thread, last_ran_seconds_ago=0.0, frames=_with_step(thread.frames, number))
        if thread.frames
        else thread
        for thread in look.threads
    )
    return replace(look, threads=threads)


def _with_step(frames: tuple[Frame, ...], number: int) -> tuple[Frame, ...]:
    """The frames with a counter in the outermost one that is the user's.

    A thread begins in frames of Python itself.
    """
    place = max((n for n, frame in enumerate(frames) if not is_library(frame.file)), default=len(frames) - 1)
    return (
        *frames[:place],
        replace(frames[place], variables=(("step", str(number)),)),
        *frames[place + 1 :],
    )


def test_ranks_of_another_group_are_not_accused_of_a_wait_that_is_not_for_them() -> None:
    verdict = judged("apart", HangLimits(alone=0.5, work=1.0))
    assert [(one.code, getattr(one.subject, "rank", None)) for one in verdict.findings] == [("hang.sleep", 1)]


def test_a_rank_that_works_alone_is_blamed_past_the_limit_that_the_message_names() -> None:
    assert judged("evaluation").outcome is Outcome.WARN
    blamed = judged("evaluation", HangLimits(work=12))
    assert (blamed.outcome, blamed.findings[0].code) == (Outcome.FAIL, "hang.works_too_long")
    assert "12 s" in blamed.headline


def test_all_in_one_call_and_still_is_the_network_and_nobody_in_particular() -> None:
    verdict = judge_job(_all_as_rank_0(recorded("sleep")))
    assert [finding.code for finding in verdict.findings] == ["hang.all_wait"]
    assert verdict.findings[0].subject.kind == "host"


def test_ranks_of_other_machines_may_be_to_blame_where_all_that_are_here_wait() -> None:
    """Half of the ranks are elsewhere: those that are here are not enough to blame the network."""
    job = replace(_all_as_rank_0(recorded("sleep")), world_size=8)
    verdict = judge_job(job)
    assert [finding.code for finding in verdict.findings] == ["hang.still"]
    assert "another machine" in verdict.headline


def test_another_size_is_told_by_shape() -> None:
    job = _all_as_rank_0(recorded("sleep"))
    changed = tuple(_with_size(rank, 1024) if rank.rank == 3 else rank for rank in job.ranks)
    verdict = judge_job(replace(job, ranks=changed))
    assert verdict.findings[0].code == "hang.other_size"
    assert getattr(verdict.findings[0].subject, "rank", None) == 3
    assert "float32 [1024]" in verdict.headline


def test_a_wait_that_has_just_begun_is_no_hang() -> None:
    job = recorded("skipped")
    fresh = replace(job, ranks=tuple(_fresh(rank) for rank in job.ranks))
    assert judge_job(fresh).outcome is not Outcome.FAIL


def _all_as_rank_0(job: Job) -> Job:
    first = job.ranks[0]
    return replace(job, ranks=tuple(replace(rank, looks=_as(first.looks, rank.pid)) for rank in job.ranks))


def _as(looks: tuple[ProcessLook, ...], pid: int) -> tuple[ProcessLook, ...]:
    return tuple(
        replace(
            look,
            pid=pid,
            threads=tuple(replace(one, tid=pid) if one.tid == look.pid else one for one in look.threads),
        )
        for look in looks
    )


def _with_size(rank: RankSeen, size: int) -> RankSeen:
    def changed(frame: Frame) -> Frame:
        return replace(
            frame, tensors=tuple((name, replace(one, shape=(size,))) for name, one in frame.tensors)
        )

    return replace(rank, looks=tuple(_frames_as(look, changed) for look in rank.looks))


def _frames_as(look: ProcessLook, changed: Callable[[Frame], Frame]) -> ProcessLook:
    threads = tuple(replace(one, frames=tuple(map(changed, one.frames))) for one in look.threads)
    return replace(look, threads=threads)


def _fresh(rank: RankSeen) -> RankSeen:
    def just(look: ProcessLook) -> ProcessLook:
        return replace(look, threads=tuple(replace(one, last_ran_seconds_ago=0.2) for one in look.threads))

    return replace(rank, looks=tuple(just(look) for look in rank.looks))


def test_every_finding_says_what_to_do() -> None:
    assert len({kind.code for kind in HANG_FINDINGS}) == len(HANG_FINDINGS)
    for case in RECORDED:
        for finding in judged(case.name).findings:
            assert finding.remedy
            assert finding.evidence, finding.code
            assert not finding.blocks_jobs


def _without_process(job: Job) -> Job:
    expected = tuple(rank.rank for rank in job.ranks if isinstance(rank.rank, int))
    return replace(job, ranks=job.ranks[:-1], expected=expected)


def _with_state(job: Job, state: str) -> Job:
    rank = job.ranks[-1]
    ended = replace(rank, looks=(*rank.looks[:-1], replace(rank.last, state=state)))
    return replace(job, ranks=(*job.ranks[:-1], ended))


ENDINGS = {
    "has no process": _without_process,
    "is a zombie": partial(_with_state, state="Z"),
    "ended while it was looked at": partial(_with_state, state="X"),
}


@walk(product(RECORDED, ENDINGS), lambda case: f"{case[0].name}, a rank {case[1]}")
def test_a_rank_that_others_have_not_waited_for_is_not_missed(case: tuple[Recorded, str]) -> None:
    """The ranks of a job that ends go one after the other: what is left has stood there for less than a
    second.
    """
    recording, ending = case
    verdict = judge_job(ENDINGS[ending](seen_early(recorded(recording.name))))
    assert "hang.rank_gone" not in [one.code for one in verdict.findings], verdict.headline


@walk(product(RECORDED, ENDINGS), lambda case: f"{case[0].name}, a rank {case[1]}")
def test_of_ranks_that_all_ended_while_they_were_looked_at_none_is_blamed(case: tuple[Recorded, str]) -> None:
    """A job that has ended is neither healthy nor hanging."""
    recording, ending = case
    job = ENDINGS[ending](recorded(recording.name))
    for rank in job.ranks:
        looks = (*rank.looks[:-1], replace(rank.last, state="X"))
        job = replace(
            job, ranks=tuple(replace(one, looks=looks) if one is rank else one for one in job.ranks)
        )
    verdict = judge_job(job)
    assert verdict.outcome is Outcome.ERROR, verdict.headline


def _asleep_until(look: ProcessLook, end: float) -> ProcessLook:
    """The look at a main thread whose sleep ends at that time of the looks."""
    main = replace(look.threads[0], wakes_in_seconds=end - look.at_seconds)
    return replace(look, threads=(main, *look.threads[1:]))


@pytest.mark.parametrize(
    ("until", "again_seconds", "outcome", "words"),
    [
        (8.0, 0.0, Outcome.WARN, "it wakes up in"),
        (3600.0, 0.0, Outcome.FAIL, "it wakes up in 60 min"),
        (8.0, 1.0, Outcome.FAIL, "sleeps at kinds.py:57 in load"),
    ],
)
def test_a_sleep_that_ends_soon_is_no_hang_and_one_of_many_shows_nothing(
    until: float, again_seconds: float, outcome: Outcome, words: str
) -> None:
    job = recorded("sleep")
    ranks = [
        replace(
            rank,
            looks=tuple(
                _asleep_until(look, until + place * again_seconds) for place, look in enumerate(rank.looks)
            ),
        )
        if rank.rank == 2
        else rank
        for rank in job.ranks
    ]
    verdict = judge_job(replace(job, ranks=tuple(ranks)))
    assert verdict.outcome is outcome
    assert words in verdict.findings[0].message


def test_a_sleep_in_a_loop_is_a_hang_however_soon_it_ends() -> None:
    job = recorded("tries_again")
    ranks = [
        replace(rank, looks=tuple(_asleep_until(look, 8.0) for look in rank.looks)) for rank in job.ranks
    ]
    assert judge_job(replace(job, ranks=tuple(ranks))).outcome is Outcome.FAIL
