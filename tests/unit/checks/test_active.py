from dataclasses import replace
from datetime import datetime

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.registry import Level
from gpudiag.checks.runner import run_checks
from gpudiag.compat import UTC
from gpudiag.model.active import SustainedPoint, Untested
from gpudiag.model.evidence import DeviceSubject, HostSubject, LinkSubject, RankSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.history import Baseline, History, Sample
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from tests.unit.checks.active_measures import (
    GB,
    LINK_SPEED,
    MEMORY_SPEED,
    ON_CPU,
    gpu_snapshot,
    judged_by,
    measure_cpu,
    measure_gpus,
    with_one,
)

CHECKS = {check.name: check for check in BUILTIN}
OF_MEASURES = [check.name for check in BUILTIN if "active" in check.needs]
SNAPSHOT = gpu_snapshot()
GOOD = measure_gpus(SNAPSHOT)
SICK = 3
SICK_UUID = SNAPSHOT.devices[SICK].id.uuid
NAN = float("nan")


def judge(name, measurement, snapshot=SNAPSHOT, **values):
    return run_checks(judged_by(measurement, snapshot, **values), (CHECKS[name],))[0]


def found(name, measurement, snapshot=SNAPSHOT, **values):
    return [(one.code, one.subject) for one in judge(name, measurement, snapshot, **values).findings]


def sick_gpu():
    device = SNAPSHOT.devices[SICK]
    return DeviceSubject(device.id.uuid, device.id.bus_id, device.id.nvml_index, SNAPSHOT.host)


@pytest.mark.parametrize("name", OF_MEASURES)
def test_healthy_cpu_ranks_pass_or_do_not_apply(name):
    result = judge(name, measure_cpu())
    assert result.outcome in (Outcome.PASS, Outcome.SKIP)
    if result.outcome is Outcome.SKIP:
        assert result.missing_reason is None


def test_slow_memory_is_named_with_every_limit_that_applies():
    slow = replace(GOOD, bandwidth=with_one(GOOD.bandwidth, SICK, bytes_per_second=0.6 * MEMORY_SPEED))
    assert found("bandwidth.memory", slow) == [("bandwidth.memory_slow", sick_gpu())]
    evidence = judge("bandwidth.memory", slow).findings[0].evidence
    assert {fact.source.partition(":")[0] for fact in evidence} >= {"derived", "peers"}


def test_a_speed_that_is_no_number_is_a_finding():
    wrong = replace(GOOD, bandwidth=with_one(GOOD.bandwidth, SICK, bytes_per_second=NAN))
    assert found("bandwidth.memory", wrong) == [("bandwidth.memory_slow", sick_gpu())]


def test_a_slow_link_to_the_host_is_held_against_the_link_as_read_under_load():
    place = 8 + SICK
    slow = replace(GOOD, bandwidth=with_one(GOOD.bandwidth, place, bytes_per_second=0.5 * LINK_SPEED))
    assert found("bandwidth.host_device", slow) == [("bandwidth.host_slow", sick_gpu())]
    sources = [fact.source for fact in judge("bandwidth.host_device", slow).findings[0].evidence]
    assert any("PCIe 5.0 x16" in source for source in sources)


def test_a_gpu_that_is_slow_both_ways_is_one_finding_that_tells_them_apart():
    both = tuple(
        replace(copy, bytes_per_second=0.5 * LINK_SPEED)
        if copy.rank == SICK and copy.test in ("host_to_device", "device_to_host")
        else copy
        for copy in GOOD.bandwidth
    )
    (finding,) = judge("bandwidth.host_device", replace(GOOD, bandwidth=both)).findings
    names = {fact.name for fact in finding.evidence}
    assert names >= {"host_to_device_bytes_per_second", "device_to_host_bytes_per_second"}


def test_a_gpu_on_an_honest_half_of_the_lanes_alone_is_not_slow_for_its_link():
    one = gpu_snapshot(1)
    measured = measure_gpus(one)
    narrow = tuple(replace(point, pcie_width=8) for point in measured.telemetry)
    half = tuple(replace(copy, bytes_per_second=27 * GB) for copy in measured.bandwidth)
    result = judge("bandwidth.host_device", replace(measured, bandwidth=half, telemetry=narrow), one)
    assert result.outcome is Outcome.PASS


def test_a_slow_pair_of_gpus_is_a_link():
    place = next(
        number
        for number, copy in enumerate(GOOD.bandwidth)
        if copy.test == "peer_copy" and (copy.rank, copy.peer) == (2, 5)
    )
    slow = replace(GOOD, bandwidth=with_one(GOOD.bandwidth, place, bytes_per_second=40 * GB))
    ((code, subject),) = found("bandwidth.peer", slow)
    assert code == "bandwidth.peer_slow"
    assert isinstance(subject, LinkSubject)
    assert subject.ends[0].startswith("GPU 2")
    assert subject.ends[1].startswith("GPU 5")


def test_wrong_bytes_fail_whatever_the_speed():
    wrong = replace(GOOD, bandwidth=with_one(GOOD.bandwidth, SICK, wrong_bytes=1))
    assert found("bandwidth.data", wrong) == [("bandwidth.corrupted", RankSubject(SICK, "a1"))]
    assert judge("bandwidth.data", wrong).outcome is Outcome.FAIL


def test_a_slow_multiplier_is_named():
    slow = replace(GOOD, compute=with_one(GOOD.compute, SICK, flops_per_second=300e12))
    assert found("compute.matmul", slow) == [("compute.slow", sick_gpu())]


@pytest.mark.parametrize("measured", [GOOD, measure_cpu(8)], ids=["gpus", "cpu"])
def test_a_device_that_contradicts_itself_fails(measured):
    wrong = replace(measured, determinism=with_one(measured.determinism, SICK, deviating=1))
    assert found("compute.determinism", wrong) == [("compute.not_repeatable", RankSubject(SICK, "a1"))]


@pytest.mark.parametrize("measured", [GOOD, measure_cpu(4)], ids=["gpus", "cpu"])
def test_a_device_in_the_minority_fails(measured):
    wrong = replace(measured, determinism=with_one(measured.determinism, SICK, digest="fedcba9876543210"))
    assert found("compute.determinism", wrong) == [("compute.minority", RankSubject(SICK, "a1"))]


def test_two_devices_that_differ_have_no_majority():
    pair = measure_cpu(2)
    wrong = replace(pair, determinism=with_one(pair.determinism, 1, digest="fedcba9876543210"))
    assert found("compute.determinism", wrong) == [("compute.no_majority", HostSubject("a1"))]


def test_a_flipped_bit_in_memory_fails_with_its_place():
    wrong = replace(
        GOOD,
        patterns=with_one(
            GOOD.patterns,
            SICK,
            wrong_words=2,
            first_pattern="ones",
            first_offset_bytes=4096,
            flipped_bits="0x8",
        ),
    )
    assert found("memory.patterns", wrong) == [("memory.pattern_mismatch", sick_gpu())]
    facts = {fact.name: fact.value for fact in judge("memory.patterns", wrong).findings[0].evidence}
    assert (facts["first_offset_bytes"], facts["flipped_bits"]) == (4096, "0x8")


def test_memory_that_could_not_be_had_is_never_a_pass():
    short = replace(GOOD, patterns=with_one(GOOD.patterns, SICK, tested_bytes=2**35))
    assert judge("memory.patterns", short).outcome is Outcome.ERROR


def test_a_gpu_that_gets_slower_is_named_with_how_its_heat_and_clock_moved():
    points = tuple(SustainedPoint(float(at), 700e12 * (1 - 0.1 * at / 600)) for at in range(0, 600, 2))
    telemetry = tuple(
        replace(point, temperature_celsius=60 + int(point.at_seconds) * 3) for point in GOOD.telemetry
    )
    slow = replace(GOOD, sustained=with_one(GOOD.sustained, SICK, points=points), telemetry=telemetry)
    assert found("compute.sustained", slow) == [("compute.slows_down", sick_gpu())]
    facts = {fact.name: fact.value for fact in judge("compute.sustained", slow).findings[0].evidence}
    assert facts["temperature_celsius_slope"] == 180.0


def test_a_rank_that_died_is_a_finding():
    died = Incident(IncidentKind.DIED, SICK, "a1", "measure", 1.0, ())
    result = judge("active.ranks", replace(GOOD, incidents=(died,), done=()))
    assert [finding.code for finding in result.findings] == ["rank.died"]
    assert result.outcome is Outcome.FAIL


def test_a_test_that_nobody_finished_is_an_error_also_where_a_rank_was_late():
    cut = replace(GOOD, done=GOOD.done[:-1])
    assert judge("active.ranks", cut).outcome is Outcome.ERROR
    late = Incident(IncidentKind.LATE, SICK, "a1", "measure", 1.0, ())
    result = judge("active.ranks", replace(cut, incidents=(late,)))
    assert (result.outcome, [one.code for one in result.findings]) == (Outcome.ERROR, ["rank.late"])


@pytest.mark.parametrize(
    ("name", "field", "wrong"),
    [
        ("bandwidth.data", "bandwidth", {"wrong_bytes": 1}),
        ("compute.determinism", "determinism", {"deviating": 1}),
        ("memory.patterns", "patterns", {"wrong_words": 1}),
    ],
)
def test_wrong_data_fails_also_where_another_rank_told_nothing(name, field, wrong):
    results = with_one(getattr(GOOD, field), SICK, **wrong)
    kept = tuple(result for result in results if result.rank != SICK + 1)
    assert judge(name, replace(GOOD, **{field: kept})).outcome is Outcome.FAIL


def test_a_gpu_that_others_use_is_a_skip_that_counts():
    left = (Untested(SICK_UUID, "GPU 3", "1 compute process"),)
    result = judge("active.coverage", replace(GOOD, untested=left))
    assert result.outcome is Outcome.SKIP
    assert result.missing_reason is MissingReason.NOT_ASKED
    assert "GPU 3" in (result.reason or "")


def history(median, count=5, metric="memory_copy", uuid=SICK_UUID):
    now = datetime(2026, 11, 20, tzinfo=UTC)
    return History("a1", "store", baselines=(Baseline(metric, "B/s", uuid, median, count, median, now),))


def drift(value, kept, *, judged=True):
    sample = Sample("memory_copy", value, "B/s", SICK_UUID, judged)
    return run_checks(
        judged_by(GOOD, SNAPSHOT, history=kept, samples=(sample,)), (CHECKS["performance.drift"],)
    )[0]


def test_a_gpu_slower_than_it_was_drifts():
    result = drift(90.0, history(100.0))
    assert [(one.code, one.subject) for one in result.findings] == [("performance.drift", sick_gpu())]


@pytest.mark.parametrize(
    ("kept", "outcome"),
    [
        (history(100.0, count=2), Outcome.SKIP),
        (history(100.0, uuid="GPU-other"), Outcome.SKIP),
        (NOT_ASKED, Outcome.SKIP),
        (Missing(MissingReason.SOURCE_ABSENT, "not read in time"), Outcome.SKIP),
    ],
)
def test_without_its_own_history_nothing_is_said(kept, outcome):
    assert drift(1.0, kept).outcome is outcome


def test_what_drifts_on_one_gpu_is_one_finding_the_worst_first():
    kept = History(
        "a1", "store", baselines=(*history(100.0).baselines, *history(10.0, metric="matmul").baselines)
    )
    samples = (Sample("memory_copy", 90.0, "B/s", SICK_UUID), Sample("matmul", 5.0, "FLOP/s", SICK_UUID))
    context = judged_by(GOOD, SNAPSHOT, history=kept, samples=samples)
    (finding,) = run_checks(context, (CHECKS["performance.drift"],))[0].findings
    assert [fact.name for fact in finding.evidence] == ["matmul", "memory_copy", "store"]


def test_a_drift_joins_the_finding_that_holds_the_speed_against_more():
    slow = replace(GOOD, bandwidth=with_one(GOOD.bandwidth, SICK, bytes_per_second=0.6 * MEMORY_SPEED))
    samples = (Sample("memory_copy", 0.6 * MEMORY_SPEED, "B/s", SICK_UUID),)
    context = judged_by(slow, SNAPSHOT, history=history(MEMORY_SPEED), samples=samples)
    memory, drifted = run_checks(context, (CHECKS["bandwidth.memory"], CHECKS["performance.drift"]))
    assert [one.code for one in memory.findings] == ["bandwidth.memory_slow"]
    assert "memory_copy is at 60%" in memory.findings[0].message
    assert (drifted.outcome, drifted.findings) == (Outcome.WARN, ())


def test_a_drift_that_is_no_number_never_passes():
    assert drift(NAN, history(100.0)).outcome is Outcome.ERROR


def test_the_cpus_speed_is_remembered_and_not_judged():
    assert drift(1.0, history(100.0), judged=False).outcome is Outcome.SKIP


def test_an_absent_device_uuid_costs_only_itself():
    bare = tuple(replace(copy, device_uuid=ON_CPU) for copy in GOOD.bandwidth)
    assert judge("bandwidth.memory", replace(GOOD, bandwidth=bare)).outcome is not Outcome.ERROR


def test_levels_are_those_that_the_tests_take():
    assert {CHECKS[name].level for name in ("compute.determinism", "bandwidth.peer")} == {Level.STANDARD}
    assert {CHECKS[name].level for name in ("memory.patterns", "compute.sustained")} == {Level.LONG}
