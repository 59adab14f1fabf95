"""What gpudiag measured on real, healthy GPUs, judged again: nothing of it may warn, and no speed may ever
fail.
"""

import gzip
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.ranks.measured_speeds import seen_meanwhile
from gpudiag.checks.runner import run_checks
from gpudiag.model.active import MEMORY_COPY, ActiveMeasurement, Untested
from gpudiag.model.context import Context
from gpudiag.model.documents import loads
from gpudiag.model.finding import CheckResult, Outcome
from gpudiag.model.report import Report
from gpudiag.store.baselines import samples_of

FOLDER = Path(__file__).parents[2] / "corpus/machines"
DOCUMENTS = [
    f"{gpu}/{name}.json.gz" for gpu in ("h100", "h200") for name in ("bandwidth", "preflight-standard")
]
ON_RANKS = [check for check in BUILTIN if {"active", "collective", "training"} & set(check.needs)]
SPEED_CHECKS = ("bandwidth.memory", "bandwidth.host_device", "compute.matmul")


@cache
def recorded(name: str) -> Report:
    report = loads(gzip.decompress((FOLDER / name).read_bytes()).decode())
    assert isinstance(report, Report)
    return report


def active(name: str) -> ActiveMeasurement:
    measured = recorded(name).measures.active
    assert isinstance(measured, ActiveMeasurement)
    return measured


def judged(name: str, measured: ActiveMeasurement | None = None) -> dict[str, CheckResult]:
    report = recorded(name)
    measures = report.measures if measured is None else replace(report.measures, active=measured)
    results = run_checks(Context(report.snapshot, measures), ON_RANKS)
    return {result.check: result for result in results}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_healthy_gpu_passes_by_what_was_measured_there(name: str):
    results = judged(name)
    assert [finding for result in results.values() for finding in result.findings] == []
    assert {results[check].outcome for check in SPEED_CHECKS} == {Outcome.PASS}
    assert not [
        result for result in results.values() if result.outcome is Outcome.ERROR and "active" in result.check
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.1, 0.001])
def test_no_speed_however_low_fails_there(name: str, share: float):
    measured = active(name)
    slower = replace(
        measured,
        bandwidth=tuple(
            replace(
                one,
                bytes_per_second=share * one.bytes_per_second,
                time_p50_seconds=one.time_p50_seconds / share,
            )
            for one in measured.bandwidth
        ),
        compute=tuple(
            replace(one, flops_per_second=share * one.flops_per_second) for one in measured.compute
        ),
    )
    results = judged(name, slower)
    assert all(results[check].outcome in (Outcome.PASS, Outcome.WARN) for check in SPEED_CHECKS)
    if share <= 0.5:  # and it is not that nothing is judged
        assert {results[check].outcome for check in SPEED_CHECKS} == {Outcome.WARN}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_power_cap_is_seen_where_it_held_the_clock_down(name: str):
    measured = active(name)
    for product in measured.compute:
        seen = seen_meanwhile(measured, product)
        assert seen is not None
        assert ("sw_power_cap" in seen.clocks_event_reasons) is (product.dtype != "float32")


def test_copies_of_a_full_gpu_that_are_too_short_are_not_held_against_its_data_sheet():
    """An H200 of which 900 MB were free: copies of 59 MB at 68 % of the data sheet, of a GPU that reaches 87
    %.
    """
    measured = active("h200/bandwidth.json.gz")
    short = tuple(
        replace(
            one,
            size_bytes=59047936,
            bytes_per_second=2715284574990.0,
            time_p50_seconds=2 * 59047936 / 2715284574990.0,
        )
        if one.test == MEMORY_COPY
        else one
        for one in measured.bandwidth
    )
    result = judged("h200/bandwidth.json.gz", replace(measured, bandwidth=short))["bandwidth.memory"]
    assert (result.outcome, result.findings) == (Outcome.SKIP, ())
    assert "its start" in str(result.reason)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_was_measured_beside_others_is_neither_judged_nor_remembered(name: str):
    measured = active(name)
    uuid = measured.compute[0].device_uuid
    halved = tuple(replace(one, flops_per_second=0.2 * one.flops_per_second) for one in measured.compute)
    who = "1 compute process: pid 4242 (ann, python hold.py) holds 139 GiB, started 2 h ago"
    beside = replace(measured, compute=halved, shared=(Untested(uuid, "GPU 0", who, in_use=True),))
    results = judged(name, beside)
    for check in (*SPEED_CHECKS, "active.coverage"):
        assert results[check].outcome is Outcome.SKIP, check
        assert who in str(results[check].reason)
    assert results["bandwidth.data"].outcome is Outcome.PASS  # that is exact, whoever else is there
    assert samples_of(
        replace(recorded(name).measures, active=beside, collective=recorded(name).measures.collective)
    ) == tuple(sample for sample in samples_of(recorded(name).measures) if sample.device_uuid != uuid)
