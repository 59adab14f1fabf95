"""Counters are compared within one life of the driver, and only where both snapshots have them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpudiag.checks.per_device import counted, hours_between, moved, seconds_between
from gpudiag.checks.registry import Judgement
from gpudiag.model.context import Context
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from tests.unit.model.nouns import TAKEN_AT, make_device, make_machine, make_snapshot


def context_of(now, before, *, seconds=60.0, **earlier):
    snapshot = make_snapshot(*now, machine=make_machine(boot_id="one"))
    facts = {
        "machine": make_machine(boot_id="one"),
        "taken_at": TAKEN_AT - timedelta(seconds=seconds),
        **earlier,
    }
    return Context(snapshot, earlier=make_snapshot(*before, **facts))


def replays(*counts):
    return [make_device(place, pcie_replay_count=count) for place, count in enumerate(counts)]


def test_a_counter_rises_from_one_snapshot_to_the_other():
    counts = counted(context_of(replays(120, 7), replays(100, 7)), "pcie_replay_count")
    assert [(count.device.id.nvml_index, count.before, count.rise) for count in counts] == [
        (0, 100, 20),
        (1, 7, 0),
    ]


def test_a_counter_that_fell_was_reset_and_says_nothing():
    assert counted(context_of(replays(3), replays(100)), "pcie_replay_count") == ()


@pytest.mark.parametrize(
    "earlier",
    [{"machine": make_machine(boot_id="two")}, {"driver_version": "570.86.15"}, {"taken_at": TAKEN_AT}],
)
def test_another_life_of_the_driver_is_not_compared(earlier: dict):
    found = counted(context_of(replays(120), replays(100), **earlier), "pcie_replay_count")
    assert isinstance(found, Judgement)
    assert found.outcome is Outcome.SKIP


def test_a_gpu_that_was_not_there_before_is_a_gap():
    found = counted(context_of(replays(120), []), "pcie_replay_count")
    assert isinstance(found, Judgement)
    assert (found.outcome, found.missing_reason) == (Outcome.SKIP, MissingReason.SOURCE_ABSENT)


def test_a_count_that_failed_now_is_an_error():
    found = counted(context_of(replays(Missing(MissingReason.ERROR)), replays(3)), "pcie_replay_count")
    assert isinstance(found, Judgement)
    assert found.outcome is Outcome.ERROR


def test_life_counts_are_compared_with_the_baseline_where_there_is_no_earlier_reading():
    now = make_device(0, ecc_uncorrected_aggregate=4)
    before = make_snapshot(make_device(0, ecc_uncorrected_aggregate=1))
    context = Context(make_snapshot(now), baseline=before)
    rise = moved(context, now, "ecc_uncorrected_aggregate")
    assert rise is not None
    assert (rise.rise, rise.source) == (3, "the baseline")
    assert moved(replace(context, baseline=NOT_ASKED), now, "ecc_uncorrected_aggregate") is None


def test_time_passes_in_seconds_and_hours():
    context = context_of(replays(1), replays(1), seconds=7200.0)
    assert (seconds_between(context), hours_between(context)) == (7200.0, 2.0)
