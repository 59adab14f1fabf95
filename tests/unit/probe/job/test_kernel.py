"""When a thread last ran: by the clock of the processor that it ran on, read by the thread that looks."""

import os

import pytest

from gpudiag.probe.job import kernel
from gpudiag.probe.job.kernel import Schedule, SchedulerClocks, look_at_process


def test_the_clock_is_read_on_that_processor_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    read: list[tuple[str, set[int]]] = []

    def schedule(folder: str) -> Schedule:
        read.append((folder, os.sched_getaffinity(0)))
        return Schedule(None, 0, 5000.0)

    monkeypatch.setattr(kernel, "_schedule", schedule)
    clocks = SchedulerClocks()
    for processor in (*sorted(allowed), *sorted(allowed)):
        first, second = clocks.read_ms(processor), clocks.read_ms(processor)
        assert first is not None
        assert second is not None
        assert 5000.0 <= first <= second
    assert read == [("/proc/thread-self", {processor}) for processor in sorted(allowed)]
    assert os.sched_getaffinity(0) == allowed


def test_where_the_thread_may_not_run_its_own_clock_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    monkeypatch.setattr(kernel, "_schedule", lambda _: Schedule(None, 0, 5000.0))
    assert SchedulerClocks().read_ms(100_000) is not None
    assert os.sched_getaffinity(0) == allowed
    monkeypatch.setattr(kernel, "_schedule", lambda _: Schedule(None, 0, None))
    assert SchedulerClocks().read_ms(0) is None


def test_this_process_runs_now() -> None:
    look = look_at_process(os.getpid(), 0.0)
    assert look is not None
    assert look.threads[0].last_ran_seconds_ago == 0.0
