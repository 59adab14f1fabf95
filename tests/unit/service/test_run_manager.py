"""How a run of the service ends that was asked to end: by its deadline, or by a user."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpudiag.compat import UTC
from gpudiag.model.run import Run, RunState
from gpudiag.service.manager import RunManager
from gpudiag.service.run_list import RunEntry


class Watch:
    """A machine under watch, as far as runs touch it."""

    snapshot = None

    def resume(self, _: str) -> None:
        pass

    def note_run(self, *_: str) -> None:
        pass


class Process:
    """A run's process that ends once it is asked to."""

    log, log_bytes = b"", 0
    events: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.status: int | None = None

    def exit_status(self) -> int | None:
        return self.status

    def ask_to_end(self) -> None:
        self.status = -15

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("deadline_seconds", "end", "state", "words"),
    [
        (0.0, lambda manager: None, RunState.FAILED, "it took longer than 0 s"),
        (1e9, lambda manager: manager.cancel("r1"), RunState.CANCELLED, "a user cancelled it"),
    ],
    ids=["deadline", "user"],
)
def test_a_run_that_was_asked_to_end(
    tmp_path: Path, deadline_seconds: float, end: Callable[[RunManager], Any], state: RunState, words: str
) -> None:
    watch, process = Watch(), Process()
    manager = RunManager(watch, lambda _: None, tmp_path, None, ("nccl-test",))  # type: ignore[arg-type]
    now = datetime.now(UTC)
    run = Run("r1", "nccl-test", RunState.RUNNING, {}, (), ("host",), "gpudiag", deadline_seconds, now)
    manager._list.add(RunEntry(run, process=process))  # type: ignore[arg-type]
    end(manager)
    manager._look()
    manager._look()
    ended = manager.find("r1")
    assert (ended.state, ended.reason) == (state, words)


def test_what_others_stored_takes_its_place_and_is_shown_if_it_ended_while_people_look(
    tmp_path: Path,
) -> None:
    shown: list[Any] = []
    manager = RunManager(Watch(), shown.append, tmp_path, None, ("nccl-test",))  # type: ignore[arg-type]
    now = datetime.now(UTC)

    def job(name: str, hours: float, ended: float) -> Run:
        at, end = now + timedelta(hours=hours), now + timedelta(hours=ended)
        known = {}, (), (), "gpudiag run -- x", None, at
        return Run(name, "run", RunState.SUCCEEDED, *known, ended_at=end, outcome="fail")

    own = Run("own", "nccl-test", RunState.RUNNING, {}, (), ("host",), "gpudiag", 60.0, now)
    manager._list.add(RunEntry(own))
    of_before, of_now = job("before", -3, -2), job("now", -1, 1)
    for _ in range(2):  # what is known stays as it is
        manager._add_stored([(of_before, "gpudiag run"), (of_now, "gpudiag run"), (own, "another:1:1")])
    assert [run.id for run in manager.list_runs()] == ["own", "now", "before"]
    assert manager.find("own").state is RunState.RUNNING
    assert shown == [of_now]
