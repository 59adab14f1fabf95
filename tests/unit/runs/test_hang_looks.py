"""When `gpudiag hang` looks again before it answers: recorded jobs, of which nothing moved and which hung a
moment ago.
"""

from dataclasses import replace

import pytest

from gpudiag.model.finding import Outcome
from gpudiag.model.job import JOINED
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.job.gather import Gathered
from gpudiag.probe.job.look import Wanted
from gpudiag.probe.job.py_spy import parse_native
from gpudiag.runs import hang
from tests.recorded_hangs import facts_of, looked_at_again, recorded, recorded_on_gpus, seen_early


class Machine:
    """Jobs that are looked at: early first, then as they were recorded; it counts the further looks."""

    def __init__(self, *names: str) -> None:
        self.jobs = tuple(map(recorded, names))
        self.further: list[int | None] = []

    def gather(self, wanted: Wanted, within_seconds: float | None = None) -> Gathered:
        if wanted.looks == 2:
            return Gathered(tuple(map(seen_early, self.jobs)), 0)
        self.further.append(wanted.pid)
        return Gathered(tuple(job for job in self.jobs if wanted.pid in {rank.pid for rank in job.ranks}), 0)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(hang, "sleep", seconds.append)
    monkeypatch.setattr(hang, "find_py_spy", lambda: "py-spy")
    monkeypatch.setattr(hang, "read_job_state", lambda job: job.state)
    return seconds


@pytest.mark.parametrize("names", [("exit",), ("exit", "sleep")])
def test_every_job_of_which_nothing_moves_is_looked_at_again_and_blamed(
    monkeypatch: pytest.MonkeyPatch, slept: list[float], names: tuple[str, ...]
) -> None:
    machine = Machine(*names)
    monkeypatch.setattr(hang, "gather_looks", machine.gather)
    report = hang.run_hang(every=True, with_machine=False)
    assert [one.outcome for one in report.jobs] == [Outcome.FAIL] * len(names)
    assert [one.findings[0].code for one in report.jobs] == [
        {"exit": "hang.at_exit", "sleep": "hang.sleep"}[name] for name in names
    ]
    assert len(machine.further) == len(names) == len(slept)


def test_processes_that_are_joined_are_looked_at_again_by_the_one_that_joins_them(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    """One of them, if it is named, may be a job of its own: the others would then be taken for gone."""
    machine = Machine("exit")
    machine.jobs = (replace(machine.jobs[0], launcher=JOINED, launcher_pid=4711),)
    asked: list[int | None] = []

    def gather(wanted: Wanted, within_seconds: float | None = None) -> Gathered:
        asked.append(wanted.pid)
        return Gathered(machine.jobs if len(asked) > 1 else tuple(map(seen_early, machine.jobs)), 0)

    monkeypatch.setattr(hang, "gather_looks", gather)
    (verdict,) = hang.run_hang(every=True, with_machine=False).jobs
    assert verdict.findings[0].code == "hang.at_exit"
    assert asked == [None, 4711]


def test_a_job_that_is_decided_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    machine = Machine("sigstop")
    monkeypatch.setattr(hang, "gather_looks", machine.gather)
    assert hang.run_hang(every=True, with_machine=False).outcome is Outcome.FAIL
    assert machine.further == [] == slept


class OnGpus:
    """A recorded job on GPUs: two looks at first, then the later one again and again.

    It counts the looks and the stops.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.first, self.name = recorded_on_gpus(name), name
        self.later = looked_at_again(self.first, name)
        self.stopped: list[int] = []
        self.looks = 0
        monkeypatch.setattr(hang, "gather_looks", self.gather)
        monkeypatch.setattr(hang, "read_c_functions", self.read)
        monkeypatch.setattr(hang, "start_gpu_use", lambda: None)

    def gather(self, wanted: Wanted, within_seconds: float | None = None) -> Gathered:
        if wanted.looks == 2:
            return Gathered((self.first,), 0)
        self.looks += 1
        ranks = (replace(rank, looks=rank.looks[-1:]) for rank in self.later.ranks)
        return Gathered((replace(self.later, ranks=tuple(ranks)),), 0)

    def read(self, pid: int, *, timeout_seconds: float) -> Reading[tuple[str, ...]]:
        assert timeout_seconds > 0
        self.stopped.append(pid)
        told = next(one for one in facts_of(self.name)["ranks"] if one["pid"] == pid)
        return parse_native(told["py_spy_native_json"]["out"], pid)


class Clock:
    """Time that passes only where something sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(hang, "sleep", self.sleep)
        monkeypatch.setattr(hang, "monotonic", lambda: self.now)
        monkeypatch.setattr(hang, "find_py_spy", lambda: "py-spy")
        monkeypatch.setattr(hang, "read_job_state", lambda job: job.state)

    def sleep(self, seconds: float) -> None:
        self.now += max(0.05, seconds)


@pytest.mark.parametrize("name", ["healthy", "slow", "longkernel", "evalok"])
def test_no_rank_of_a_job_that_goes_on_is_stopped_for_its_c_functions(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    Clock(monkeypatch)
    seen = OnGpus(monkeypatch, name)
    report = hang.run_hang(7, with_machine=False)
    assert report.outcome in (Outcome.PASS, Outcome.WARN)
    assert seen.stopped == []
    assert report.notes == ("read from outside: no rank was stopped or changed",)


def test_c_functions_prove_a_wait_for_the_gpu_before_a_job_is_accused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Clock(monkeypatch)
    seen = OnGpus(monkeypatch, "size")
    report = hang.run_hang(7, with_machine=False)
    assert (report.outcome, report.jobs[0].findings[0].code) == (Outcome.FAIL, "hang.other_size")
    assert sorted(seen.stopped) == [rank.pid for rank in seen.first.ranks]
    assert "2 ranks were stopped once" in report.notes[0]


def test_a_job_that_cannot_be_told_is_watched_for_as_long_as_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    seen = OnGpus(monkeypatch, "spin")
    began = clock.now
    unknown = hang.run_hang(7, with_machine=False)
    assert (unknown.outcome, unknown.jobs[0].findings[0].code) == (Outcome.ERROR, "hang.unknown")
    assert clock.now - began < 10
    watched = hang.run_hang(7, with_machine=False, watch_seconds=90.0)
    assert (watched.outcome, watched.jobs[0].findings[0].code) == (Outcome.FAIL, "hang.gpu")
    assert 60 <= clock.now - began < 120
    assert sorted(set(seen.stopped)) == [rank.pid for rank in seen.first.ranks]
    assert len(seen.stopped) == 4  # once for each answer, though it was looked at for a minute


def test_c_functions_that_cannot_be_read_are_said_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Clock(monkeypatch)
    seen = OnGpus(monkeypatch, "spin")
    asked: list[int] = []

    def refuse(pid: int, *, timeout_seconds: float) -> Reading[tuple[str, ...]]:
        asked.append(pid)
        return Missing(MissingReason.TIMED_OUT, "py-spy did not answer within 30 s")

    monkeypatch.setattr(hang, "read_c_functions", refuse)
    report = hang.run_hang(7, with_machine=False, watch_seconds=30.0)
    assert report.outcome is Outcome.ERROR
    assert sorted(asked) == [rank.pid for rank in seen.first.ranks]
    assert "C functions could not be read: py-spy did not answer within 30 s" in report.jobs[0].unseen


class TimedMachine(Machine):
    """It keeps how long each look may take."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.given: list[float | None] = []

    def gather(self, wanted: Wanted, within_seconds: float | None = None) -> Gathered:
        self.given.append(within_seconds)
        return super().gather(wanted)


def test_no_look_is_begun_that_could_not_end_by_the_deadline(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    """What stands still for too short a time is told so, and the time limit reaches the looks themselves."""
    machine = TimedMachine("sleep")
    monkeypatch.setattr(hang, "gather_looks", machine.gather)
    report = hang.run_hang(every=True, with_machine=False, deadline_seconds=2.0)
    assert machine.given == [2.0]
    assert machine.further == [] == slept
    assert report.jobs[0].findings[0].code == "hang.still"


def test_further_looks_get_what_is_left_of_the_deadline(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    machine = TimedMachine("sleep")
    monkeypatch.setattr(hang, "gather_looks", machine.gather)
    assert hang.run_hang(every=True, with_machine=False, deadline_seconds=600.0).outcome is Outcome.FAIL
    first, later = machine.given
    assert first == 600.0
    assert later is not None
    assert 0 < later <= 600.0
