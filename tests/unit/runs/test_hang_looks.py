"""When `gpudiag hang` looks again before it answers: recorded jobs, of which nothing moved and which hung a moment ago."""

import pytest

from gpudiag.model.finding import Outcome
from gpudiag.probe.job.gather import Gathered
from gpudiag.probe.job.look import Wanted
from gpudiag.runs import hang
from tests.recorded_hangs import recorded, seen_early


class Machine:
    """Jobs that are looked at: early first, then as they were recorded; it counts the further looks."""

    def __init__(self, *names: str) -> None:
        self.jobs = tuple(map(recorded, names))
        self.further: list[int | None] = []

    def gather(self, wanted: Wanted) -> Gathered:
        if wanted.looks > 1:
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


def test_a_job_that_is_decided_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    machine = Machine("sigstop")
    monkeypatch.setattr(hang, "gather_looks", machine.gather)
    assert hang.run_hang(every=True, with_machine=False).outcome is Outcome.FAIL
    assert machine.further == [] == slept
