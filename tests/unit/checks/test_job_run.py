"""How a run is judged: which rank failed first, what is an echo, what a stall and a signal from outside make
of it.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gpudiag.checks.job.kinds import SLEEP
from gpudiag.checks.job.run import (
    RunFacts,
    describe_unseen_ranks,
    judge_run,
    outcome_of_run,
    without_last_moves,
)
from gpudiag.checks.job.run_causes import find_first_failure
from gpudiag.checks.job.shares import SlowRank
from gpudiag.compat import UTC
from gpudiag.model.evidence import RankSubject
from gpudiag.model.explanation import Verdict, VerdictKind
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Job, JobVerdict
from gpudiag.model.job_run import JobRun, RankEnd, RankRecord, SignalSeen, Stall, StepTime, WatchCost
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import NOT_ASKED
from gpudiag.render.job_run_text import render_job_run, render_stall
from tests.walking import walk

START = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def rank(number: int, code: int, order: int | None, **more: Any) -> RankRecord:
    end = RankEnd.KILLED if code < 0 else RankEnd.FAILED if code else RankEnd.FINISHED
    names = {-9: "SIGKILL", -15: "SIGTERM"}
    values: dict[str, Any] = (
        {"rank": number, "pid": 100 + number, "started": START, "end": end}
        | {"ended": at(60 + (order or 9) * 0.1), "exit_code": code}
        | {"signal": names.get(code), "order": order, "attempt": 1}
    )
    return RankRecord(**{**values, **more})


def facts(*ranks: RankRecord, **more: Any) -> RunFacts:
    values: dict[str, Any] = (
        {"host": "a1", "started": START, "seconds": 61.0, "exit_status": 1}
        | {"ranks": ranks, "signals": (), "stalls": (), "slow": ()}
        | {"step": StepTime(0.5, 90, 0.9, 60.0), "kernel": (), "glances": 40, "unseen": ()}
    )
    return RunFacts(**{**values, **more})


LOOK = JobVerdict(
    "torchrun 1: train.py",
    Outcome.FAIL,
    "rank 2 sleeps",
    (
        SLEEP.finding(
            RankSubject(2, "a1"), "rank 2 is not in the all_reduce (train.py:10): it sleeps at data.py:6"
        ),
    ),
    (),
    (),
    (),
    Job("torchrun 1: train.py", "a1", "torchrun", 1, 4, None, ()),
)
STALL = Stall(at(20), 25.0, 15.0, reported=True, ended=False, over=None, look=LOOK)
WELL = tuple(rank(number, 0, None) for number in range(4))


def codes(run: RunFacts) -> list[str]:
    return [finding.code for finding in judge_run(run)]


def test_a_job_that_ended_well_has_no_finding() -> None:
    assert judge_run(facts(*WELL, exit_status=0)) == ()


def test_the_first_to_fail_is_named_with_those_after_it() -> None:
    killed = (rank(0, -15, 2), rank(1, -15, 3), rank(2, -9, 1))
    (finding,) = judge_run(facts(*killed))
    assert (finding.code, finding.subject) == ("job.rank_failed", RankSubject(2, "a1"))
    assert {one.name: one.value for one in finding.evidence}["then_ranks"] == "0, 1 killed by SIGTERM"


def test_a_rank_that_only_lost_another_one_is_no_cause() -> None:
    lost = "RuntimeError: [..] Connection closed by peer [127.0.0.1]:2"
    echo, cause = rank(0, 1, 1, error=lost), rank(3, 1, 2, error="ValueError: no labels")
    assert find_first_failure((echo, cause)) is cause
    assert find_first_failure((echo,)) is echo  # the cause may be on another machine
    assert find_first_failure((rank(1, -15, 1), rank(2, 1, 2))) == rank(2, 1, 2)


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:27535"
WAITED = {
    "last_wait": "all_reduce (train.py:9 in main)",
    "still_seconds": 54.0,
    "error_place": "train.py:9 in main",
}


def test_who_ended_well_while_another_waited_for_it_is_the_cause() -> None:
    """Rank 1 makes no more calls, and ends; rank 0 dies of the closed connection, with exit code 1."""
    left = rank(1, 0, None, ended=at(59), last_place="train.py:50 in write_results")
    victim = rank(0, 1, 1, error=LOST, **WAITED)
    (finding,) = judge_run(facts(victim, left))
    assert (finding.code, finding.subject) == ("job.rank_left", RankSubject(1, "a1"))
    assert finding.message == (
        "rank 1 left: it ended with exit status 0 after 59 s, "
        "while rank 0 waited in all_reduce (train.py:9 in main) for "
        "54 s; it was last seen at train.py:50 in write_results"
    )
    # Its end may come after the other's, whose exception it caused: interpreters take long to end.
    assert codes(facts(victim, replace(left, ended=at(63)))) == ["job.rank_left"]
    # A rank that failed for a reason of its own is the cause, and who ended well beside it is none.
    assert codes(facts(replace(victim, error="KeyError: 'dog'"), left)) == ["job.rank_failed"]


def test_who_was_elsewhere_when_another_gave_up_its_wait_is_the_cause() -> None:
    gave_up = rank(
        0, 1, 1, error="RuntimeError: Timed out waiting 25000ms for recv operation to complete", **WAITED
    )
    slept = rank(1, -15, 2, last_place="data.py:6 in load_batch")
    (finding,) = judge_run(facts(gave_up, slept))
    assert (finding.code, finding.subject) == ("job.rank_left", RankSubject(1, "a1"))
    assert "was not in the collective that rank 0 waited in until it gave up" in finding.message
    assert "last seen at data.py:6 in load_batch" in finding.message


def test_a_rank_whose_cause_is_on_another_machine_is_not_called_the_first() -> None:
    (finding,) = judge_run(facts(rank(0, 1, 1, error=LOST, **WAITED), world_size=8))
    assert "rank 0 only lost another rank" in finding.message
    assert "likely on another machine: 1 of 8 ranks are on this one" in finding.message


def test_the_output_names_the_exception_where_the_rank_left_none() -> None:
    """`python -I`: the job's start is not read, and its output goes to a file."""
    log = Verdict(
        VerdictKind.RANK_FAILED, "Rank 1 failed first: KeyError: 'dog'.", (1,), excerpt="KeyError: 'dog'"
    )
    (finding,) = judge_run(facts(rank(1, 1, 1), log=log))
    assert finding.message == "rank 1 failed first: it ended with exit code 1 after 60.1 s: KeyError: 'dog'"
    says_nothing = replace(log, excerpt="ended with exit status 1")
    (finding,) = judge_run(facts(rank(1, 1, 1), log=says_nothing))
    assert finding.message == "rank 1 failed first: it ended with exit code 1 after 60.1 s"
    (finding,) = judge_run(facts(rank(1, 1, 1), log=replace(log, ranks=(0,))))  # another rank's words
    assert "KeyError" not in finding.message


def test_exceptions_are_ordered_by_when_they_were_raised() -> None:
    """Rank 1 raised first and took longer to end than rank 0, which only then failed."""
    second = rank(0, 1, 1, error="ValueError: b", raised=at(58), ended=at(59))
    first = rank(1, 1, 2, error="ValueError: a", raised=at(57), ended=at(61))
    found = find_first_failure([second, first])
    assert found is first


def test_what_was_seen_last_is_told_where_a_signal_ends_a_job_that_stands_still() -> None:
    waits = replace(LOOK, outcome=Outcome.WARN)
    by = (SignalSeen("SIGINT", at(50), passed_on=False),)
    (finding,) = judge_run(facts(rank(0, 1, 1), signals=by, last_look=waits))
    assert finding.code == "job.interrupted"
    assert "when it was last looked at, rank 2 is not in the all_reduce (train.py:10)" in finding.message


def test_nan_in_a_collective_is_named_where_torch_looked_for_it() -> None:
    words = "AcceleratorError: CUDA error: device-side assert triggered"
    failed = rank(
        1, 1, 1, error=words, error_place="train.py:40 in main", last_wait="all_reduce (train.py:40 in main)"
    )
    (finding,) = judge_run(facts(failed, nan_check=True, found_nan=True))
    assert (
        "it put NaN into a collective, all_reduce (train.py:40 in main): TORCH_NCCL_NAN_CHECK"
        in finding.message
    )
    by_dump = {1: "all_reduce number 43 of group default_pg"}
    (finding,) = judge_run(facts(failed, nan_check=True, found_nan=True, last_calls=by_dump))
    assert "into a collective, all_reduce number 43 of group default_pg: TORCH" in finding.message
    (finding,) = judge_run(facts(failed, nan_check=True))
    assert "it likely put NaN into a collective" in finding.message
    (finding,) = judge_run(facts(failed))
    assert "NaN" not in finding.message


def test_a_rank_that_comes_last_to_collectives_is_told_by_its_records() -> None:
    slow = SlowRank(1, 0.1, 0.2, 7, "sleeps", 0.5, "train.py:53 in main", 0.25, 38, 40)
    (finding,) = judge_run(facts(*WELL, exit_status=0, slow=(slow,)))
    assert finding.message.startswith(
        "rank 1 is slow: it comes last to 38 of 40 collectives, 250 ms after all others; it waits for"
    )


def test_an_out_of_memory_kill_is_told_where_the_kernel_says_so() -> None:
    line = "Out of memory: Killed process 102 (python)"
    kill = KernelEvent(KernelEventKind.OUT_OF_MEMORY_KILL, at(60), line, pid=102, process="python")
    (finding,) = judge_run(facts(rank(2, -9, 1), kernel=(kill,)))
    assert "memory ran out" in finding.message
    assert "memory" in finding.remedy
    (other,) = judge_run(facts(rank(2, -9, 1), kernel=(replace(kill, pid=7),)))
    assert "memory ran out" not in other.message


def test_a_signal_from_outside_is_no_fault_unless_a_rank_had_failed() -> None:
    signal = SignalSeen("SIGTERM", at(60), passed_on=True)
    ended = facts(rank(0, -15, 1), rank(1, 1, 2), signals=(signal,))
    assert codes(ended) == ["job.interrupted"]
    assert codes(replace(ended, ranks=(), seconds=5.0, exit_status=130)) == ["job.interrupted"]
    late = replace(signal, at=at(62))
    assert codes(replace(ended, signals=(late,))) == ["job.rank_failed"]
    assert codes(replace(ended, signals=(replace(signal, name="SIGWINCH"),))) == ["job.rank_failed"]


def test_a_stall_is_the_cause_of_what_follows_it() -> None:
    run = facts(rank(2, -9, 1), stalls=(STALL,), signals=(SignalSeen("SIGTERM", at(59), passed_on=True),))
    (finding,) = judge_run(run)
    assert (finding.code, finding.subject) == ("job.stalled", RankSubject(2, "a1"))
    assert "50 of its steps" in finding.message
    assert finding.remedy == SLEEP.remedy
    died_before = rank(2, -9, 1, ended=at(10))
    assert codes(replace(run, ranks=(died_before,), signals=())) == ["job.stalled", "job.rank_failed"]


def test_what_moves_as_the_job_ends_is_no_going_on() -> None:
    went_on = replace(STALL, ended=True, over=at(45))
    assert codes(facts(*WELL, exit_status=0, stalls=(went_on,))) == ["job.paused"]
    assert without_last_moves((went_on,), WELL, (), None) == (went_on,)
    (by_failure,) = without_last_moves((went_on,), (rank(2, 1, 1),), (), None)
    (by_signal,) = without_last_moves(
        (went_on,), WELL, (SignalSeen("SIGTERM", at(44), passed_on=True),), None
    )
    (by_gpudiag,) = without_last_moves((went_on,), WELL, (), at(44))
    assert not by_failure.ended
    assert not by_signal.ended
    assert not by_gpudiag.ended
    (long_after,) = without_last_moves((went_on,), (rank(2, 1, 1, ended=at(900)),), (), None)
    assert long_after.ended


def test_a_job_that_takes_long_to_end_has_no_second_stall() -> None:
    """Ctrl-C woke the ranks up, and they stood still again until their launcher killed them."""
    by = (SignalSeen("SIGINT", at(46), passed_on=False),)
    again = replace(STALL, began=at(47), stood_seconds=29.0)
    assert without_last_moves((replace(STALL, ended=True, over=at(47)), again), (), by, None) == (STALL,)


def test_a_stall_that_could_not_be_looked_at_says_why() -> None:
    unseen = replace(STALL, look=None, unseen="py-spy is not installed")
    (finding,) = judge_run(facts(*WELL, exit_status=0, stalls=(unseen,)))
    assert "py-spy is not installed" in finding.message


def test_restarts_slow_ranks_and_blindness_are_warnings() -> None:
    slow = SlowRank(1, 0.02, 0.2, 12, "runs", 0.15, "train.py:20 in main")
    run = facts(rank(1, -9, 1), *WELL, exit_status=0, slow=(slow,))
    assert codes(run) == ["job.restarted", "job.rank_slow"]
    assert {finding.outcome for finding in judge_run(run)} == {Outcome.WARN}
    blind = facts(*WELL, exit_status=0, glances=0, unseen=("py-spy is not installed",))
    assert codes(blind) == ["job.not_watched"]
    assert codes(facts(exit_status=0, seconds=600.0)) == ["job.not_watched"]
    assert codes(facts(exit_status=7, seconds=1.0)) == ["job.command_failed"]


NOBODY = {
    "no ranks": ({"command": ("true",)}, "skip", "it started none, or they ended too soon"),
    "elsewhere": ({"command": ("/usr/bin/srun", "-N2", "python", "train.py")}, "skip",
        "srun may have started ranks elsewhere"),
    "a script": ({"command": ("bash", "job.sh", "mpirun")}, "skip",
        "mpirun may have started ranks elsewhere"),
    "not listed": ({"unseen": ("the ranks could not be listed: EPERM",)}, "skip", "EPERM"),
    "elsewhere, for long": ({"command": ("mpirun", "a"), "seconds": 600.0}, "warn",
        "mpirun may have started ranks elsewhere"),
    "no ranks, for long": ({"command": ("make",), "seconds": 600.0}, "warn",
        "no process of the command has a rank"),
    "failed": ({"exit_status": 7}, "fail", "it started none"),
}  # fmt: skip


@walk(NOBODY)
def test_a_command_of_which_no_rank_was_seen_is_never_called_well(name: str) -> None:
    more, outcome, why = NOBODY[name]
    run = facts(**{"exit_status": 0, "seconds": 2.0, "glances": 0, "step": NOT_ASKED, **more})
    assert outcome_of_run(run, judge_run(run)).value == outcome
    assert why in describe_unseen_ranks(run)


def test_ranks_that_outlive_the_command_are_not_called_well() -> None:
    left = replace(WELL[2], end=RankEnd.RUNS, ended=None)
    (finding,) = judge_run(facts(*WELL[:2], left, exit_status=0))
    assert (finding.code, finding.outcome) == ("job.not_watched", Outcome.WARN)
    assert "rank 2 continued" in finding.message
    assert judge_run(facts(left, exit_status=0, has_ended=False)) == ()


def document(run: RunFacts) -> JobRun:
    findings = judge_run(run)
    return JobRun(
        Outcome.FAIL, findings[0].message, findings, ("torchrun", "train.py"), "a1", "id", START, 61.0, 1,
        None, "2.13", {},
        None, 4, run.ranks, run.step, (), run.stalls, run.signals, run.kernel, None,
        WatchCost(1.0, NOT_ASKED, 1, 40), run.unseen,
    )  # fmt: skip


def test_every_line_is_gpudiags_and_fits_a_terminal() -> None:
    for run in (facts(rank(0, -15, 2), rank(2, -9, 1)), facts(*WELL, stalls=(STALL,))):
        for text in (
            render_job_run(document(run), "v.json"),
            render_stall(document(run), "v.json", kills=True),
        ):
            assert text.splitlines()
            assert all(line.startswith("gpudiag: ") and len(line) <= 80 for line in text.splitlines())
