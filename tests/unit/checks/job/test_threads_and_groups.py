"""Collectives of several threads, process groups that some ranks make, compilers, loops that end: recorded
jobs, changed in one thing.
"""

from collections.abc import Callable
from dataclasses import replace

from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.verdict import judge_job
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Awaited, ChildSeen, Frame, Job, JobVerdict, ProcessLook, RankSeen, ThreadLook
from tests.recorded_hangs import recorded

_MAIN = "MainThread"


def changed(job: Job, change: Callable[[RankSeen, ThreadLook], ThreadLook]) -> Job:
    def of_rank(rank: RankSeen) -> RankSeen:
        looks = tuple(
            replace(look, threads=tuple(change(rank, one) for one in look.threads)) for look in rank.looks
        )
        return replace(rank, looks=looks)

    return replace(job, ranks=tuple(map(of_rank, job.ranks)))


def with_frames(
    job: Job, change: Callable[[Frame], Frame], which: Callable[[ThreadLook], bool] = lambda _: True
) -> Job:
    def of_thread(_: RankSeen, thread: ThreadLook) -> ThreadLook:
        return replace(thread, frames=tuple(map(change, thread.frames))) if which(thread) else thread

    return changed(job, of_thread)


def codes(verdict: JobVerdict) -> list[str]:
    return [one.code for one in verdict.findings]


def beside(thread: ThreadLook) -> bool:
    return thread.name not in (_MAIN, "")


# --- threads


def test_the_remedy_names_the_thread_the_group_and_the_argument() -> None:
    (finding,) = judge_job(recorded("saves")).findings
    for words in ("AsyncCheckpointExecutor_0", "default process group", "process_group=own", "gloo"):
        assert words in finding.remedy
    (finding,) = judge_job(recorded("prefetch")).findings
    assert "dist.broadcast(..., group=own)" in finding.remedy


def test_a_thread_with_a_group_of_its_own_is_not_accused() -> None:
    """The same job, had it given its thread another group: the hang has another cause, which the stacks do
    not show.
    """

    def own(frame: Frame) -> Frame:
        return frame if frame.group is None else replace(frame, group=replace(frame.group, name="1"))

    for name in ("saves", "prefetch"):
        assert "hang.threads_share_group" not in codes(judge_job(with_frames(recorded(name), own, beside)))


def test_a_backward_pass_shares_its_gradients_in_the_default_group() -> None:
    """Which group DDP has is not in the stack: a thread in the default one is told, one in a group of its own
    is not.
    """

    def backward(rank: RankSeen, thread: ThreadLook) -> ThreadLook:
        if thread.name != _MAIN:
            return thread
        own = [frame for frame in thread.frames if frame.file.endswith("threads.py")]
        engine = Frame(
            "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", "_engine_run_backward", 872
        )
        return replace(thread, frames=(engine, *own))

    job = changed(recorded("saves"), backward)
    (finding,) = judge_job(job).findings
    assert finding.code == "hang.threads_share_group"
    assert "wait in the backward (threads.py:59 in saves) of the same group (DDP takes it" in finding.message

    def own(frame: Frame) -> Frame:
        return frame if frame.group is None else replace(frame, group=replace(frame.group, name="1"))

    assert "hang.threads_share_group" not in codes(judge_job(with_frames(job, own, beside)))


def test_a_thread_that_waits_to_receive_is_not_accused() -> None:
    def receive(frame: Frame) -> Frame:
        return replace(frame, function="recv") if frame.function == "broadcast" else frame

    verdict = judge_job(with_frames(recorded("prefetch"), receive, beside))
    assert "hang.threads_share_group" not in codes(verdict)


def test_a_rank_that_does_something_else_is_blamed_first() -> None:
    """A rank whose main thread sleeps holds up both calls, whatever order they come in."""

    def sleep(rank: RankSeen, thread: ThreadLook) -> ThreadLook:
        if rank.rank != 2 or thread.name != _MAIN:
            return thread
        own = next(frame for frame in thread.frames if frame.file.endswith("threads.py"))
        frames = (replace(own, text="time.sleep(3600)"),)
        return replace(thread, frames=frames, syscall="clock_nanosleep", awaited=None)

    verdict = judge_job(changed(recorded("saves"), sleep))
    assert codes(verdict) == ["hang.sleep"]


def test_two_threads_that_have_not_stood_for_long_are_no_hang_yet() -> None:
    job = recorded("saves")
    early = replace(job, ranks=tuple(replace(rank, looks=rank.looks[:2]) for rank in job.ranks))
    early = changed(early, lambda _, thread: replace(thread, last_ran_seconds_ago=0.9))
    assert codes(judge_job(early)) == ["hang.still"]


def test_ranks_that_spin_may_wait_for_a_long_kernel_and_get_more_time() -> None:
    """As with NCCL: a thread that waits takes a processor, and since when is known by the looks alone."""

    def spin(_: RankSeen, thread: ThreadLook) -> ThreadLook:
        return replace(thread, state="R", syscall="", last_ran_seconds_ago=0.0) if thread.frames else thread

    job = changed(recorded("saves"), spin)
    assert codes(judge_job(job)) == ["hang.still"]
    assert codes(judge_job(job, HangLimits(idle=0.5))) == ["hang.threads_share_group"]


def test_a_thread_that_is_in_the_call_on_one_rank_alone_is_told_with_it() -> None:
    """On the other ranks it has left the call: their main threads wait for what the first one's thread has
    taken.
    """

    def leave(rank: RankSeen, thread: ThreadLook) -> ThreadLook:
        return replace(thread, frames=()) if rank.rank and beside(thread) else thread

    (finding,) = judge_job(changed(recorded("prefetch"), leave)).findings
    assert finding.code == "hang.threads_share_group"
    assert "the thread prefetch of rank 0 waits" in finding.message


# --- process groups


def test_numbers_that_fit_are_no_proof_and_the_missing_call_is_told_all_the_same() -> None:
    def same(frame: Frame) -> Frame:
        values = tuple((name, '"1"' if name == "group_name" else value) for name, value in frame.variables)
        return replace(frame, variables=values)

    verdict = judge_job(with_frames(recorded("made_by_some"), same))
    assert codes(verdict) == ["hang.group_made_by_some"]
    assert "has the number" not in verdict.headline
    assert "ranks 0 and 3 have left it out, or are past it" in verdict.headline


def test_a_rank_that_left_out_an_earlier_call_is_not_called_a_victim() -> None:
    """Three wait in a collective, and one is ahead of them in `new_group`: it left theirs out."""

    def ahead(rank: RankSeen, thread: ThreadLook) -> ThreadLook:
        def later(frame: Frame) -> Frame:
            return replace(frame, line=frame.line + 900) if frame.file.endswith("threads.py") else frame

        making = rank.rank in (1, 2) and thread.name == _MAIN
        return replace(thread, frames=tuple(map(later, thread.frames))) if making else thread

    def without_numbers(frame: Frame) -> Frame:
        return replace(frame, variables=())

    job = with_frames(changed(recorded("made_by_some"), ahead), without_numbers)
    assert "hang.group_made_by_some" not in codes(judge_job(job))


# --- compilers


def with_compiler(job: Job, change: Callable[[ProcessLook], ProcessLook]) -> Job:
    def of_child(child: ChildSeen) -> ChildSeen:
        return replace(child, looks=tuple(map(change, child.looks)))

    ranks = (replace(rank, children=tuple(map(of_child, rank.children))) for rank in job.ranks)
    return replace(job, ranks=tuple(ranks))


def waits_for(awaited: Awaited | None, syscall: str) -> Callable[[ProcessLook], ProcessLook]:
    return lambda look: replace(
        look, threads=tuple(replace(one, awaited=awaited, syscall=syscall) for one in look.threads)
    )


def test_a_compiler_that_waits_for_a_lock_is_told_with_its_holder() -> None:
    lock = Awaited("lock", "/cache/x.lock", "held by pid 12 (sleep 100)")
    verdict = judge_job(with_compiler(recorded("compiler_fifo"), waits_for(lock, "flock")))
    assert codes(verdict) == ["hang.compiler"]
    assert "the lock on the file /cache/x.lock (held by pid 12 (sleep 100))" in verdict.headline


def test_a_compiler_that_may_wait_for_a_server_gets_more_time() -> None:
    server = Awaited("socket", "10.0.0.2:443")
    job = with_compiler(recorded("compiler_fifo"), waits_for(server, "poll"))
    assert codes(judge_job(job)) == ["hang.still"]
    assert codes(judge_job(job, HangLimits(disk=10.0))) == ["hang.compiler"]


def test_a_compiler_that_runs_is_a_compilation_and_told_once_others_wait_for_long() -> None:
    def run(look: ProcessLook) -> ProcessLook:
        threads = tuple(
            replace(one, state="R", cpu_seconds=one.cpu_seconds + look.at_seconds, syscall="", awaited=None)
            for one in look.threads
        )
        return replace(look, threads=threads)

    verdict = judge_job(with_compiler(recorded("compiler_fifo"), run))
    assert (verdict.outcome, codes(verdict)) == (Outcome.WARN, ["hang.works_alone"])
    assert "compiles at job.py:22" in verdict.headline
    early = judge_job(with_compiler(recorded("compiler_fifo"), run), HangLimits(alone=1000.0))
    assert "no rank waits long" not in early.headline


# --- loops


def in_loop(job: Job, loop: str) -> Job:
    def change(frame: Frame) -> Frame:
        inside = tuple(loop if one.startswith("while") else one for one in frame.inside)
        return replace(frame, inside=inside)

    return with_frames(job, change)


def test_a_loop_with_an_end_is_work_and_no_endless_loop() -> None:
    ends = ("while time.monotonic() < until", "while datetime.now() <= end", "while len(buffer) < 100")
    for loop in (*(f"{one} (line 125)" for one in ends), "while True (line 125), which yields"):
        verdict = judge_job(in_loop(recorded("joined_loop"), loop))
        assert "hang.loop" not in codes(verdict), loop
    for loop in ("while not is_done() (line 125)", "while numbers[0] >= 0 (line 125)"):
        assert codes(judge_job(in_loop(recorded("joined_loop"), loop))) == ["hang.loop"], loop


def test_a_loop_that_writes_all_the_time_is_no_endless_loop() -> None:
    def write(rank: RankSeen) -> RankSeen:
        looks = tuple(
            replace(look, written_bytes=int(look.at_seconds * 1_000_000), read_bytes=0) for look in rank.looks
        )
        return replace(rank, looks=looks) if rank.rank == 2 else rank

    job = recorded("python_loop")
    verdict = judge_job(replace(job, ranks=tuple(map(write, job.ranks))))
    assert "hang.loop" not in codes(verdict), verdict.headline


# --- what is said beside the verdict


def test_nothing_is_ruled_out_that_was_not_looked_at() -> None:
    files = "no main thread waits for a file, a lock or a server"
    assert files in judge_job(recorded("sleep")).ruled_out
    assert files not in judge_job(recorded("compiler_fifo")).ruled_out  # it waits for a thread of its own

    def unreadable(_: RankSeen, thread: ThreadLook) -> ThreadLook:
        return replace(thread, syscall="", awaited=None) if thread.state != "R" else thread

    assert files not in judge_job(changed(recorded("skipped"), unreadable)).ruled_out


def test_ranks_of_a_job_with_its_store_elsewhere_are_not_missed_here() -> None:
    for name in ("killed", "never_came"):
        job = replace(recorded(name), master="10.0.0.7:29500")
        assert "hang.rank_gone" not in codes(judge_job(job)), name
