import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.sampler.ring import (
    COARSE,
    FINE,
    MAX_DEVICES,
    MAX_POINTS,
    NAMES,
    TIERS,
    Ring,
    plan_window,
    read_window,
    spacing_seconds,
)

NOW = 1_800_000_000.0


def filled(samples: dict[float, dict[str, float]]) -> Ring:
    ring = Ring()
    for at, sample in samples.items():
        ring.add("GPU-1", at, sample)
    return ring


def points(ring: Ring, name: str, from_at: float, to_at: float, step: float, now: float = NOW):
    window = plan_window(from_at, to_at, step, now)
    return dict(zip(window.times(), read_window(ring.devices["GPU-1"], name, window), strict=True))


def test_a_second_without_a_sample_is_a_gap_and_not_zero():
    ring = filled({NOW - 3: {"power_draw_watts": 70.0}, NOW - 1: {"power_draw_watts": 0.0}})
    found = points(ring, "power_draw_watts", NOW - 4, NOW, 1)
    assert found == {NOW - 4: None, NOW - 3: 70.0, NOW - 2: None, NOW - 1: 0.0, NOW: None}


def test_a_longer_step_is_the_mean_of_what_is_there():
    ring = filled({NOW + at: {"temperature_celsius": 40.0 + at} for at in (0, 1, 3)})
    assert points(ring, "temperature_celsius", NOW, NOW + 3, 4, NOW + 3) == {NOW: pytest.approx(41.333)}


@pytest.mark.parametrize("gone", [(), (0,), (4,), (0, 1, 2, 3), (0, 1, 2, 3, 4)])
def test_a_longer_step_is_made_of_the_samples_that_are_there(gone):
    seconds = [at for at in range(5) if at not in gone]
    ring = filled(
        {
            NOW + at: {"temperature_celsius": 40.0 + at, "pstate": float(at)} if at in seconds else {}
            for at in range(5)
        }
    )
    mean = sum(40.0 + at for at in seconds) / len(seconds) if seconds else None
    assert points(ring, "temperature_celsius", NOW, NOW + 4, 5, NOW + 4) == {NOW: mean}
    assert points(ring, "pstate", NOW, NOW + 4, 5, NOW + 4) == {NOW: float(seconds[-1]) if seconds else None}


def test_masks_keep_every_bit_and_counters_the_last():
    ring = filled(
        {
            NOW: {"clocks_event_mask": 8.0, "pcie_replay_count": 5.0},
            NOW + 1: {"clocks_event_mask": 64.0, "pcie_replay_count": 7.0},
        }
    )
    assert points(ring, "clocks_event_mask", NOW, NOW + 1, 2, NOW + 1) == {NOW: 72.0}
    assert points(ring, "pcie_replay_count", NOW, NOW + 1, 2, NOW + 1) == {NOW: 7.0}


def test_after_an_hour_there_are_ten_seconds_and_after_a_day_nothing():
    ring = filled({NOW: {"sm_clock_mhz": 1980.0}, NOW + 7200: {"sm_clock_mhz": 345.0}})
    now = NOW + 7200
    assert points(ring, "sm_clock_mhz", NOW, NOW + 9, 1, now) == {NOW: 1980.0}
    ring.add("GPU-1", NOW + 2 * 86400, {"sm_clock_mhz": 345.0})
    assert set(points(ring, "sm_clock_mhz", NOW, NOW + 7300, 10, NOW + 2 * 86400).values()) == {None}


def test_time_that_goes_back_writes_nothing():
    ring = filled({NOW: {"pstate": 0.0}, NOW - 50: {"pstate": 8.0}})
    assert points(ring, "pstate", NOW - 50, NOW, 1)[NOW - 50] is None


def test_a_clock_that_was_ahead_does_not_silence_the_present():
    ring = filled({NOW: {"pstate": 1.0}, NOW + 86400: {"pstate": 2.0}, NOW + 10: {"pstate": 3.0}})
    found = points(ring, "pstate", NOW, NOW + 20, 1, NOW + 20)
    assert found[NOW + 10] == 3.0
    assert 2.0 not in found.values()
    assert points(ring, "pstate", NOW + 80_000, NOW + 86_400, 10, NOW + 86_400).get(NOW + 86_400) is None
    ring.add("GPU-1", NOW + 11, {"pstate": 4.0})
    assert points(ring, "pstate", NOW, NOW + 20, 1, NOW + 20)[NOW + 11] == 4.0


def test_what_lies_before_stays_where_the_clock_goes_back_a_little():
    ring = filled({NOW + at: {"pstate": float(at)} for at in range(300)})
    ring.add("GPU-1", NOW + 100, {"pstate": 9.0})
    found = points(ring, "pstate", NOW, NOW + 299, 1, NOW + 299)
    assert found[NOW + 99] == 99.0
    assert found[NOW + 100] == 9.0
    assert {found[NOW + at] for at in range(101, 300)} == {None}


def test_there_is_room_for_so_many_gpus_and_a_stale_one_makes_room():
    ring = Ring()
    for number in range(MAX_DEVICES):
        assert ring.add(f"GPU-{number}", NOW, {})
    assert ring.add("GPU-new", NOW, {}) is None
    for number in range(1, MAX_DEVICES):
        ring.add(f"GPU-{number}", NOW + 7200, {})
    assert ring.add("GPU-new", NOW + 7200, {}) is not None
    assert "GPU-0" not in ring.devices
    assert ring.add("GPU-newer", NOW + 7200, {}) is None


def test_a_gpu_that_was_replaced_takes_no_room_from_the_one_in_its_place():
    ring = Ring()
    for number in range(16):
        ring.add(f"GPU-{number}", NOW, {})
    for number in range(16):  # the machine comes back ten minutes later, with sixteen new ones
        assert ring.add(f"GPU-new-{number}", NOW + 600, {}) is not None
    assert len(ring.devices) == 32


def test_eight_gpus_take_less_than_ten_megabytes():
    assert 8 * bytes_of(filled({NOW: dict.fromkeys(NAMES, 1.0)})) < 10_000_000


def test_a_series_that_a_gpu_does_not_have_takes_no_memory():
    assert bytes_of(filled({NOW: {}})) == 0
    assert bytes_of(filled({NOW: {"power_draw_watts": 70.0}})) == 4 * sum(tier.slots for tier in TIERS)


def bytes_of(ring: Ring) -> int:
    arrays = [values for tier in ring.devices["GPU-1"].arrays.values() for values in tier.values()]
    return sum(len(values) * values.itemsize for values in arrays)


@given(st.floats(0, 4e9), st.floats(0, 4e9), st.floats(0.1, 1e6), st.floats(0, 4e9))
def test_a_window_is_bounded_and_covers_the_range(start, end, step, now):
    low, high = sorted((start, end))
    window = plan_window(low, high, step, now)
    assert 1 <= window.count <= MAX_POINTS + 1
    assert window.step_seconds >= min(step, 1.0)
    times = window.times()
    assert times[0] <= low
    assert times[-1] + window.step_seconds > math.floor(high)
    assert window.tier in (FINE, COARSE)


def test_every_series_has_a_place():
    ring = filled({NOW: dict.fromkeys(NAMES, 1.0)})
    for name in NAMES:
        assert points(ring, name, NOW, NOW, 1) == {NOW: 1.0}


@pytest.mark.parametrize(
    ("pauses", "spacing"),
    [
        ((1,) * 300, 1.0),
        ((5,) * 60, 5.0),
        ((1,) * 100 + (5,) * 100, 5.0),
        ((1,) * 290 + (60,), 1.0),
        ((), 1.0),
    ],
)
def test_how_far_apart_samples_are_is_what_was_stored(pauses, spacing):
    """While nobody looks a sample comes every 5 s: an hour of them has no resolution of a second."""
    ring, at = Ring(), NOW
    for pause in (0, *pauses):
        at += pause
        ring.add("GPU-1", at, {"power_draw_watts": 100.0})
    window = plan_window(at - 600, at, 1.0, at)
    assert spacing_seconds(ring.devices["GPU-1"], window) == spacing
