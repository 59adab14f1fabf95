"""Judging GPU by GPU: gaps are never taken for health, and one GPU's gap costs only itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.checks.per_device import alike, is_loaded, judge_devices, nobody_works, too_few_alike
from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, MissingReason
from tests.unit.checks.machines import LATE, LOST
from tests.unit.model.nouns import make_device, make_snapshot

KIND = FindingKind(
    "a.fault",
    Outcome.WARN,
    Severity.MONITOR,
    Category.NONE,
    Owner.HOST,
    "meaning",
    "remedy",
    Basis("reads", "limit", ()),
)
FAILED = {
    MissingReason.ERROR,
    MissingReason.TIMED_OUT,
    MissingReason.ATTACHING,
    MissingReason.DEVICE_LOST,
    MissingReason.RESET_REQUIRED,
}


def finds_nothing(snapshot, device):
    return ()


def finds_a_fault(snapshot, device):
    return (KIND.finding(HostSubject("a1"), "message"),)


@given(st.lists(st.sampled_from([None, *MissingReason]), min_size=1, max_size=4))
def test_only_a_reading_that_was_there_can_pass(readings: list):
    devices = [
        make_device(place, pstate=0 if why is None else Missing(why)) for place, why in enumerate(readings)
    ]
    found = judge_devices(make_snapshot(*devices), ("pstate",), finds_nothing)
    # A lone instrument that fails costs its value (gpu/instruments.py).
    if (FAILED - {MissingReason.ERROR}) & set(readings):
        assert found.outcome is Outcome.ERROR
        assert found.missing_reason in FAILED
    else:
        assert found.outcome is (Outcome.PASS if None in readings else Outcome.SKIP)
    assert found.outcome is Outcome.PASS or found.reason


def test_a_fault_on_one_gpu_outranks_a_warning_and_not_a_reading_that_failed_on_another():
    error = Missing(MissingReason.ERROR, "Unknown Error (NVML 999)")
    broken = make_device(1, pstate=error, ecc_mode=error)
    found = judge_devices(make_snapshot(make_device(0, pstate=0), broken), ("pstate",), finds_a_fault)
    assert (found.outcome, len(found.findings)) == (Outcome.ERROR, 1)
    assert "GPU 1" in (found.reason or "")
    assert "NVML 999" in (found.reason or "")


@pytest.mark.parametrize("why", [LOST, LATE])
def test_a_gpu_that_answers_nothing_is_left_to_the_checks_that_name_it(why: Missing):
    silent = make_device(1, responding=why, pstate=why)
    assert (
        judge_devices(make_snapshot(make_device(0, pstate=0), silent), ("pstate",), finds_nothing).outcome
        is Outcome.PASS
    )
    alone = judge_devices(make_snapshot(silent), ("pstate",), finds_nothing)
    assert (alone.outcome, alone.missing_reason) == (Outcome.SKIP, MissingReason.DEVICE_LOST)


def test_one_of_two_ways_to_look_is_enough():
    ways = {"either": (("fan_speed_percent",),)}
    device = make_device(0, pstate=Missing(MissingReason.NOT_SUPPORTED), fan_speed_percent=30)
    assert judge_devices(make_snapshot(device), ("pstate",), finds_nothing, **ways).outcome is Outcome.PASS
    neither = make_device(0)
    assert judge_devices(make_snapshot(neither), ("pstate",), finds_nothing, **ways).outcome is Outcome.SKIP
    error = Missing(MissingReason.ERROR)
    failed = make_device(0, pstate=error, ecc_mode=error, fan_speed_percent=30)
    assert judge_devices(make_snapshot(failed), ("pstate",), finds_nothing, **ways).outcome is Outcome.ERROR


def test_what_can_be_mended_is_what_a_skip_is_put_down_to():
    devices = [
        make_device(0, pstate=Missing(MissingReason.NOT_SUPPORTED)),
        make_device(1, pstate=Missing(MissingReason.NO_PERMISSION)),
    ]
    assert (
        judge_devices(make_snapshot(*devices), ("pstate",), finds_nothing).missing_reason
        is MissingReason.NO_PERMISSION
    )


def test_only_gpus_of_one_product_are_compared():
    snapshot = make_snapshot(
        make_device(0, name="A"), make_device(1, name="A"), make_device(2, name="B"), make_device(3)
    )
    assert [peer.id.nvml_index for peer in alike(snapshot, snapshot.devices[0])] == [1]
    assert alike(snapshot, snapshot.devices[3]) == ()
    assert too_few_alike(snapshot) is None
    assert too_few_alike(snapshot, wanted=3) is not None
    assert nobody_works(snapshot, 50) is not None
    assert nobody_works(make_snapshot(make_device(0, utilization_percent=50)), 50) is None


# Without persistence mode the driver starts an unused GPU for each program that asks for its readings.
WOKEN = {
    "utilization_percent": 100,
    "persistence_mode": "disabled",
    "processes": (),
    "memory_used_bytes": 4 << 20,
}


@pytest.mark.parametrize(
    ("differs", "loaded"),
    [
        ({}, False),
        ({"persistence_mode": "enabled"}, True),
        ({"memory_used_bytes": 500 << 20}, True),
        ({"memory_used_bytes": Missing(MissingReason.NOT_SUPPORTED)}, True),
        ({"processes": Missing(MissingReason.NO_PERMISSION)}, True),
    ],
)
def test_a_gpu_that_the_question_has_woken_is_not_at_work(differs, loaded):
    assert is_loaded(make_device(0, **{**WOKEN, **differs}), 50) is loaded
