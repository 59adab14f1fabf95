"""Limits grow with the run queue, with stolen time and with swapping, and shrink again slowly."""

import os

import pytest

from gpudiag.ranks.agents.local import watched_seconds
from gpudiag.ranks.diagnosis.host_load import Counters, HostLoad, read_counters


class Host:
    """A host whose counters a test sets, and its clock."""

    def __init__(self, processors: int = 2) -> None:
        self.now = 100.0
        self.counters = Counters(1, 0.0, 0.0)
        self.load = HostLoad(lambda: self.counters, processors, lambda: self.now)

    def after(self, seconds: float, **changes: float) -> float:
        self.now += seconds
        runnable = int(changes.pop("runnable", self.counters.runnable))
        stolen = self.counters.stolen_seconds + changes.pop("stolen", 0.0)
        self.counters = Counters(
            runnable, stolen, self.counters.stalled_seconds + changes.pop("stalled", 0.0)
        )
        return self.load.factor()


def test_an_idle_host_is_no_reason_to_wait_longer() -> None:
    assert Host().after(1.0) == 1.0


def test_the_run_queue_counts_per_processor_at_once() -> None:
    assert Host().after(0.5, runnable=16) == pytest.approx(4.0)
    assert Host().after(0.5, runnable=4) == 1.0


def test_a_load_that_is_gone_is_forgotten_within_seconds() -> None:
    host = Host()
    host.after(0.5, runnable=16)
    assert 2.0 < host.after(0.5, runnable=1) < 4.0
    for _ in range(20):
        last = host.after(0.5)
    assert last < 1.1


def test_time_that_the_hypervisor_took_counts() -> None:
    assert Host().after(1.0, stolen=1.0) == pytest.approx(2.0)  # half of two processors


def test_time_in_which_all_waited_for_memory_counts() -> None:
    assert Host().after(1.0, stalled=0.75) == pytest.approx(4.0)


def test_a_limit_stays_one() -> None:
    assert Host().after(1.0, runnable=4000, stolen=2.0, stalled=1.0) == 30.0


def test_this_host_tells() -> None:
    counters = read_counters()
    assert 0 <= counters.runnable < 100_000
    assert counters.stolen_seconds >= 0.0
    assert 1.0 <= HostLoad().factor() < 30.0
    assert os.sched_getaffinity(0)


def test_time_in_which_the_agent_did_not_run_itself_is_not_watched() -> None:
    assert watched_seconds(0.1) == 0.1
    assert watched_seconds(0.45) == 0.45
    assert watched_seconds(1.5) == 0.1
