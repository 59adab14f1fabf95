"""What ranks start beside their own training: a trial that hangs is named, and what serves the rank is not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpudiag.checks.job.verdict import judge_job
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Awaited, ChildSeen, Frame, Job, JobVerdict, ProcessLook, ThreadLook
from tests.recorded_hangs import recorded


def judged(name: str) -> JobVerdict:
    return judge_job(recorded(f"children/{name}"))


def with_trial(change: Callable[[ChildSeen], ChildSeen]) -> Job:
    """The recorded job of two ranks, of which rank 1 has started a trial, with the trial changed."""
    job = recorded("children/trial")
    ranks = (
        replace(
            rank, children=tuple(change(one) if "spawn_main" in one.command else one for one in rank.children)
        )
        for rank in job.ranks
    )
    return replace(job, ranks=tuple(ranks))


def main_of(look: ProcessLook, change: Callable[[ThreadLook], ThreadLook]) -> ProcessLook:
    return replace(look, threads=tuple(change(one) if one.tid == look.pid else one for one in look.threads))


def with_mains(change: Callable[[ThreadLook], ThreadLook], *, trains: bool = True) -> Job:
    """The job, with the main thread of the trial changed, and without its group where it does not train."""

    def changed(look: ProcessLook) -> ProcessLook:
        kept = tuple(one for one in look.threads if trains or one.tid == look.pid)
        return main_of(replace(look, threads=kept), change)

    return with_trial(lambda one: replace(one, looks=tuple(map(changed, one.looks))))


def at(
    syscall: str, awaited: Awaited | None = None, *calls: Frame, called: str = ""
) -> Callable[[ThreadLook], ThreadLook]:
    """A main thread that waits so in a library's frames, in a function of that name."""

    def change(main: ThreadLook) -> ThreadLook:
        frames = (
            replace(one, function=called) if one.function == "own_trial" and called else one
            for one in main.frames
        )
        return replace(
            main, syscall=syscall, awaited=awaited, frames=(*calls, *frames) if main.frames else ()
        )

    return change


def test_a_trial_that_a_rank_started_and_that_hangs_beside_it_is_named() -> None:
    verdict = judged("trial")
    assert verdict.outcome is Outcome.WARN
    (finding,) = verdict.findings
    assert finding.code == "hang.still"
    assert getattr(finding.subject, "rank", None) == 1
    for words in ("opens the FIFO", "in own_trial", "rank 1, which started it", "after 300 s"):
        assert words in verdict.headline


def test_a_process_that_a_rank_forked_is_named_by_its_own_line() -> None:
    verdict = judged("forked")
    assert [one.code for one in verdict.findings] == ["hang.still"]
    for words in ("reads the FIFO", "in trial_body"):
        assert words in verdict.headline
    assert (
        "it is called a hang" not in verdict.headline
    )  # nothing shows that it trains: it may be sent something


@pytest.mark.parametrize(("trains", "outcome"), [(True, Outcome.FAIL), (False, Outcome.WARN)])
def test_only_a_trial_that_trains_is_called_a_hang_after_the_limit(trains: bool, outcome: Outcome) -> None:
    job = with_mains(lambda main: replace(main, last_ran_seconds_ago=301.0), trains=trains)
    assert judge_job(job).outcome is outcome


def test_a_trial_that_stands_still_for_some_seconds_is_no_news() -> None:
    job = with_mains(lambda main: replace(main, last_ran_seconds_ago=5.0))
    assert judge_job(job).outcome is Outcome.PASS


LOCK = Frame("/opt/python/lib/python3.11/threading.py", "Event.wait", 629)
WORKER = Frame(
    "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", "_worker_loop", 349
)
SAVER = Frame(
    "/opt/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/filesystem.py", "_write_item", 300
)
SOCKET = Awaited("socket", "10.0.0.7:443")


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    ("change", "is_trial"),
    [
        (at("futex", None, LOCK), True),
        (at("recvfrom", SOCKET), True),
        (at("accept4", Awaited("listener", "127.0.0.1:6006")), False),
        (at("read", Awaited("pipe", "descriptor 9")), False),
        (at("clock_nanosleep"), False),
        (at("read", Awaited("file", "/data/a", "nfs4 on /data"), WORKER), False),
        (at("write", Awaited("file", "/data/a", "nfs4 on /data"), SAVER), False),
        (at("write", Awaited("file", "/data/a", "nfs4 on /data"), called="save_checkpoint"), False),
    ],
    ids=["lock", "connection", "server", "queue", "sleep", "loader", "async save", "own save"],
)
def test_who_may_wait_for_its_rank_is_accused_only_where_it_trains(
    change: Callable[[ThreadLook], ThreadLook], is_trial: bool, trains: bool
) -> None:
    verdict = judge_job(with_mains(change, trains=trains))
    assert verdict.outcome is (Outcome.WARN if is_trial and trains else Outcome.PASS), verdict.headline


def test_a_trial_that_began_between_two_looks_is_not_said_to_stand_still() -> None:
    job = with_trial(lambda one: replace(one, looks=one.looks[-1:]))
    assert judge_job(job).outcome is Outcome.PASS


def test_a_trial_that_a_signal_stopped_is_named() -> None:
    job = with_mains(lambda main: replace(main, state="T"))
    assert "is stopped by a signal" in judge_job(job).headline


def test_monitors_servers_pools_and_writers_that_wait_are_healthy() -> None:
    verdict = judged("helpers")
    assert verdict.outcome is Outcome.PASS, verdict.headline


@pytest.mark.parametrize(
    ("operation", "stood_seconds", "outcome"),
    [
        ("all_reduce", 60.0, Outcome.PASS),  # another trial of its group may work
        ("all_reduce", 301.0, Outcome.WARN),
        ("init_process_group", 12.0, Outcome.PASS),  # the others may be starting
        ("init_process_group", 31.0, Outcome.WARN),
    ],
)
def test_a_trial_that_waits_for_its_own_group_is_named_late(
    operation: str, stood_seconds: float, outcome: Outcome
) -> None:
    file = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    change = at("futex", None, Frame(file, operation, 3000))
    job = with_mains(lambda main: replace(change(main), last_ran_seconds_ago=stood_seconds))
    assert judge_job(job).outcome is outcome
