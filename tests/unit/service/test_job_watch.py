"""What the service makes of the process that watches jobs: findings while they stand still, and no silence
taken for health.
"""

from typing import Any

import pytest

from gpudiag.checks.job import kinds
from gpudiag.model.codec import encode
from gpudiag.model.evidence import RankSubject
from gpudiag.model.finding import Outcome
from gpudiag.service import job_watch
from gpudiag.service.job_watch import JobWatch

JOB = {"key": "7-1.00", "name": "torchrun 7: train.py", "pid": 7, "ranks": 2, "step_seconds": 0.5}
LISTED = {"kind": "jobs", "jobs": [JOB], "hidden": 0}
FOUND = kinds.FILE.finding(RankSubject(1, "node1"), "rank 1 opens a FIFO at train.py:9 in load_batch")
STALL = {
    "kind": "stall",
    **JOB,
    "finding": encode(FOUND),
    "why": "",
    "stood_seconds": 16.0,
    "limit_seconds": 15.0,
}
OVER = {"kind": "over", "key": JOB["key"], "why": "the job continues"}


class Child:
    """Stands in for the process."""

    started: list["Child"]

    def __init__(self, module: str, arguments: Any, receive: Any, environment: Any = None) -> None:
        self.receive, self.last_message_at, self.ended = receive, job_watch.monotonic(), False
        Child.started.append(self)

    def say(self, message: dict[str, Any]) -> None:
        self.last_message_at = job_watch.monotonic()
        self.receive(self, message)

    def abandon(self) -> None:
        self.ended = True

    def is_reaped(self) -> bool:
        return self.ended


class Watched:
    """A JobWatch, and what it told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.changes = 0
        self.notes: list[tuple[str, str]] = []
        Child.started = []
        monkeypatch.setattr(job_watch, "monotonic", lambda: self.now)
        monkeypatch.setattr(job_watch, "ChildProcess", Child)
        self.watch = JobWatch("node1", self._change, lambda *note: self.notes.append(note), {})
        self.watch.look()

    def _change(self) -> None:
        self.changes += 1

    @property
    def child(self) -> Child:
        return Child.started[-1]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_jobs_are_well_only_once_they_were_listed(watched: Watched) -> None:
    assert watched.watch.result().outcome is Outcome.SKIP
    watched.child.say(LISTED)
    assert watched.watch.result().outcome is Outcome.PASS
    assert [(one.name, one.ranks) for one in watched.watch.jobs] == [("torchrun 7: train.py", 2)]


def test_a_standstill_is_a_finding_with_its_job_until_it_is_over(watched: Watched) -> None:
    watched.child.say(LISTED)
    watched.child.say(STALL)
    result = watched.watch.result()
    (finding,) = result.findings
    assert result.outcome is Outcome.FAIL
    assert (finding.code, finding.subject, finding.blocks_jobs) == (
        "hang.file",
        RankSubject(1, "node1"),
        False,
    )
    assert finding.message == f"torchrun 7: train.py (pid 7): {FOUND.message}"
    assert {one.name: one.value for one in finding.evidence}["stands_still"] == 16.0
    watched.child.say(OVER)
    assert watched.watch.result().outcome is Outcome.PASS
    assert [severity for _, severity in watched.notes] == ["fail", "pass"]
    assert watched.changes == 3


def test_a_standstill_of_which_no_stack_could_be_read_is_no_pass(watched: Watched) -> None:
    watched.child.say(LISTED)
    watched.child.say({**STALL, "finding": None, "why": "py-spy: permission denied"})
    result = watched.watch.result()
    assert result.outcome is Outcome.ERROR
    assert "permission denied" in result.findings[0].message


def test_jobs_that_nobody_watches_are_no_pass(watched: Watched) -> None:
    watched.child.say(LISTED)
    watched.child.say({"kind": "failed", "reason": "the jobs could not be listed: crashed"})
    assert watched.watch.result().outcome is Outcome.ERROR
    watched.child.say(LISTED)
    assert watched.watch.result().outcome is Outcome.PASS
    watched.now += job_watch._SILENT_SECONDS
    watched.watch.look()
    assert watched.watch.result().outcome is Outcome.ERROR
    assert len(Child.started) == 2
    watched.child.say(LISTED)
    assert watched.watch.result().outcome is Outcome.PASS


def test_processes_of_others_that_may_not_be_read_are_told_once(watched: Watched) -> None:
    watched.child.say({**LISTED, "hidden": 3})
    assert watched.watch.result().outcome is Outcome.PASS
    assert "3 Python processes" in (watched.watch.warning or "")
    watched.child.say(LISTED)
    assert watched.watch.warning is None
