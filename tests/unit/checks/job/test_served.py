"""Engines with workers, recorded while they hung, were idle or served, and judged again: who is blamed, and
what is healthy.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.verdict import judge_job
from gpudiag.model.evidence import RankSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Awaited, Frame, Job, ProcessLook, RankSeen, ThreadLook
from gpudiag.model.reading import Missing, MissingReason
from tests.recorded_hangs import recorded
from tests.walking import walk


@dataclass(frozen=True)
class Recorded:
    """A recording of benchmarks/hang_matrix.py --engines, and what must be said of it: the code, the rank,
    words of the headline.
    """

    code: str
    rank: int
    words: tuple[str, ...]
    outcome: Outcome = Outcome.FAIL


HUNG = {
    "pipes_lora": Recorded(
        "hang.network", 2, ("ranks 0, 1 and 3 wait in", "waits for an answer from", "in load_lora")
    ),
    "pipes_killed": Recorded("hang.rank_gone", 2, ("rank 2",)),
    "pipes_slow": Recorded("hang.works_alone", 2, ("in warm_up",), Outcome.WARN),
    "forkserver_start": Recorded("hang.file", 2, ("the FIFO", "in load_weights", "init_process_group")),
    "zmq_skip": Recorded("hang.queue", 2, ("the all_reduce", "waits for work at", "in Zmq.next_request")),
    "zmq_start": Recorded("hang.file", 2, ("the FIFO", "in load_weights")),
    "ring_apart": Recorded(
        "hang.network", 2, ("in load_lora", "ranks 0, 1 and 3 wait for work", "in Ring.next_request")
    ),
    "broadcast_lora": Recorded("hang.network", 2, ("ranks 0, 1 and 3 wait in", "in load_lora")),
    "ray_lora": Recorded("hang.network", 2, ("ranks 0, 1 and 3 wait in", "in load_lora")),
    "vllm_fifo": Recorded("hang.file", 1, ("rank 0 waits in", "the FIFO")),
}
IDLE = ("pipes_idle", "zmq_idle", "ring_idle", "broadcast_idle", "ray_idle", "vllm_idle")
ALONE = ("alone_http", "alone_prompt")  # a process by itself: an HTTP server, a prompt of Python
SERVING = ("pipes_steady", "ring_steady", "remote_calls")


def engine(name: str) -> Job:
    """The recorded job of that name."""
    return recorded(f"engines/{name}")


@walk(HUNG)
def test_the_rank_that_holds_the_others_up_is_named(name: str) -> None:
    expected = HUNG[name]
    verdict = judge_job(engine(name))
    first = verdict.findings[0]
    assert (verdict.outcome, first.code) == (expected.outcome, expected.code)
    assert isinstance(first.subject, RankSubject)
    assert first.subject.rank == expected.rank
    for words in expected.words:
        assert words in verdict.headline
    assert verdict.job.servers


@walk(IDLE)
def test_an_idle_engine_is_healthy_and_called_idle(name: str) -> None:
    verdict = judge_job(engine(name))
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline.startswith("idle: waits for requests")
    assert not verdict.findings


@walk(ALONE)
def test_a_process_by_itself_that_waits_for_users_is_idle_and_as_a_rank_it_hangs(name: str) -> None:
    (seen,) = engine(name).ranks
    long = _main(seen, lambda thread: replace(thread, last_ran_seconds_ago=900.0))
    job = replace(engine(name), ranks=(long,))
    verdict = judge_job(job)
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())
    assert verdict.headline.startswith("idle: waits for requests")
    assert judge_job(replace(job, launcher="torchrun")).outcome is Outcome.FAIL


@walk(SERVING)
def test_an_engine_that_serves_is_not_accused(name: str) -> None:
    verdict = judge_job(engine(name))
    assert verdict.outcome is Outcome.PASS
    assert not verdict.findings


def test_the_server_and_its_lines_are_shown_and_are_no_rank() -> None:
    verdict = judge_job(engine("pipes_lora"))
    servers = [place for place in verdict.places if place.kind == "server"]
    assert [place.pids for place in servers] == [(one.pid,) for one in verdict.job.servers]
    assert all(place.ranks == () for place in servers)


def test_all_ranks_is_not_said_while_ranks_of_the_group_are_unseen() -> None:
    """Only one worker of a job is seen, by whatever means, and it waits in the collective of four."""
    job = engine("pipes_lora")
    alone = replace(job, ranks=job.ranks[:1], expected=None, servers=(), launcher="python")
    verdict = judge_job(alone)
    assert "all 1 ranks" not in verdict.headline
    assert "another machine, or could not be read" in verdict.headline


def test_a_rank_whose_number_is_unknown_is_named_by_its_pid() -> None:
    job = engine("pipes_lora")
    unknown = Missing(MissingReason.NOT_SUPPORTED, "its rank is unknown")
    ranks = tuple(replace(one, rank=unknown) if one.rank == 2 else one for one in job.ranks)
    verdict = judge_job(replace(job, ranks=ranks))
    pid = next(one.pid for one in job.ranks if one.rank == 2)
    assert verdict.headline.startswith(f"pid {pid} ")
    assert verdict.outcome is Outcome.FAIL
    assert any(place.pids == (pid,) for place in verdict.places)


def _main(seen: RankSeen, change: Callable[[ThreadLook], ThreadLook], **more: object) -> RankSeen:
    """The process with its main thread changed in all looks."""
    looks = []
    for look in seen.looks:
        threads = tuple(change(one) if one.tid == look.pid else one for one in look.threads)
        looks.append(replace(look, threads=threads, **more))  # type: ignore[arg-type]
    return replace(seen, looks=tuple(looks))


def _at_a_file(thread: ThreadLook) -> ThreadLook:
    frames = (Frame("/srv/engine.py", "load", 7, "file.read()"),)
    return replace(
        thread,
        frames=frames,
        syscall="read",
        awaited=Awaited("file", "/data/w", "nfs4 on /data"),
        last_ran_seconds_ago=90.0,
    )


def _asks_a_hub(thread: ThreadLook) -> ThreadLook:
    frames = (
        Frame("/usr/lib/python3.11/ssl.py", "read", 9),
        Frame("/usr/lib/python3.11/http/client.py", "begin", 8),
        Frame("/srv/engine.py", "load", 7),
    )
    return replace(
        thread,
        frames=frames,
        syscall="read",
        awaited=Awaited("socket", "10.0.0.9:443"),
        last_ran_seconds_ago=90.0,
    )


def _is_asked(thread: ThreadLook) -> ThreadLook:
    """A client of the server's holds a connection open."""
    frames = (
        Frame("/usr/lib/python3.11/selectors.py", "select", 9),
        Frame("/usr/lib/python3.11/socketserver.py", "serve_forever", 8),
        Frame("/srv/engine.py", "serve", 7),
    )
    return replace(
        thread,
        frames=frames,
        syscall="poll",
        awaited=Awaited("socket", "10.0.0.9:50000"),
        last_ran_seconds_ago=90.0,
    )


HELD_SERVERS: dict[str, tuple[Callable[[RankSeen], RankSeen], str, Outcome]] = {
    "stopped": (lambda one: _main(one, lambda thread: replace(thread, state="T")), "hang.stopped",
        Outcome.FAIL),
    "traced": (lambda one: _main(one, lambda thread: thread, traced_by="pid 3 (gdb)"), "hang.stopped",
        Outcome.FAIL),
    "at a file for 90 s": (lambda one: _main(one, _at_a_file), "hang.file", Outcome.FAIL),
    "asks a hub for 90 s": (lambda one: _main(one, _asks_a_hub), "hang.network", Outcome.FAIL),
    "at a file for 9 s": (
        lambda one: _main(one, lambda thread: replace(_at_a_file(thread), last_ran_seconds_ago=9.0)),
        "hang.still", Outcome.WARN,
    ),
}  # fmt: skip


@walk(HELD_SERVERS)
def test_a_server_that_is_held_is_the_cause_while_all_ranks_wait_for_work(name: str) -> None:
    change, code, outcome = HELD_SERVERS[name]
    job = engine("pipes_idle")
    verdict = judge_job(replace(job, servers=tuple(change(one) for one in job.servers)))
    assert (verdict.findings[0].code, verdict.outcome) == (code, outcome)
    assert f"the server, pid {job.servers[0].pid}," in verdict.headline


def test_a_server_that_is_asked_itself_is_idle() -> None:
    job = engine("pipes_idle")
    verdict = judge_job(replace(job, servers=tuple(_main(one, _is_asked) for one in job.servers)))
    assert verdict.headline.startswith("idle: ")


def test_ranks_that_look_once_a_second_wait_for_something_else_than_work() -> None:
    """As for a lock file: a request would wait for them."""
    job = engine("ring_idle")
    ranks = []
    for rank in job.ranks:
        looks = [_at_switches(look, 100 + number) for number, look in enumerate(rank.looks)]
        ranks.append(replace(rank, looks=tuple(looks)))
    verdict = judge_job(replace(job, ranks=tuple(ranks)))
    assert not verdict.headline.startswith("idle")


def _at_switches(look: ProcessLook, switches: int) -> ProcessLook:
    return replace(
        look,
        threads=tuple(replace(one, switches=switches, cpu_seconds=1.0, state="S") for one in look.threads),
    )


def test_a_rank_that_stands_still_for_less_than_ten_seconds_while_others_wait_for_work_is_no_hang_yet() -> (
    None
):
    job = engine("ring_apart")
    ranks = tuple(_main(one, lambda thread: replace(thread, last_ran_seconds_ago=4.0)) for one in job.ranks)
    verdict = judge_job(replace(job, ranks=ranks), HangLimits())
    assert (verdict.outcome, verdict.findings[0].code) == (Outcome.WARN, "hang.still")


def test_a_dead_worker_of_an_idle_engine_is_told_and_the_others_are_not_blamed() -> None:
    job = engine("pipes_idle")
    gone = replace(
        job, ranks=tuple(one for one in job.ranks if one.rank != 2), world_size=4, expected=(0, 1, 2, 3)
    )
    dead = (ProcessLook(0.0, 1, "Z", 0.0),)
    zombie = replace(
        job, ranks=tuple(replace(one, looks=dead * 2) if one.rank == 2 else one for one in job.ranks)
    )
    for changed in (gone, zombie):
        verdict = judge_job(changed)
        assert [one.code for one in verdict.findings] == ["hang.rank_gone"]
        assert "rank 2" in verdict.headline


def test_the_same_ranks_without_a_server_are_judged_as_ever() -> None:
    """Who waits for a pipe without end hangs, where nobody is known to give work."""
    job = engine("pipes_idle")
    ranks = tuple(_main(one, lambda thread: replace(thread, last_ran_seconds_ago=90.0)) for one in job.ranks)
    verdict = judge_job(replace(job, ranks=ranks, servers=()))
    assert (verdict.outcome, verdict.findings[0].code) == (Outcome.FAIL, "hang.queue")
