"""Speed on GPUs: held against the table of just such machines and the own past, and only there."""

from typing import Any

import pytest

from gpudiag.checks.ranks.collective import (
    find_algorithm,
    judge_collective_speed,
    largest_results,
    metric_name,
    samples_of,
)
from gpudiag.model.device import Device, NvLink
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.history import Baseline
from gpudiag.model.measure import CollectiveMeasurement, CollectiveResult
from gpudiag.model.reading import Missing
from tests.unit.collectives.measurements import make_measurement, make_result
from tests.unit.model.nouns import NOT_SUPPORTED, TAKEN_AT, make_device

GIB, GB = 1024**3, 1e9
H100 = "NVIDIA H100 80GB HBM3"


def make_gpus(count: int = 8, name: str = H100) -> list[Device]:
    links = tuple(NvLink(link, True, NOT_SUPPORTED, 0, 0, 0, 0) for link in range(18))
    return [
        make_device(index, name=name, nvlinks=links, nvlink_bytes_per_second=25 * GB)
        for index in range(count)
    ]


def plateau(busbw_gb: float, **values: Any) -> CollectiveResult:
    return make_result(8 * GIB, busbw_bytes_per_second=busbw_gb * GB, **values)


def on_gpus(*results: CollectiveResult, **values: Any) -> CollectiveMeasurement:
    return make_measurement(*results, **{"backend": "nccl", "device_kind": "cuda", "world_size": 8, **values})


def judge(
    measurement: CollectiveMeasurement,
    devices: list[Device] | None = None,
    environment: dict[str, str] | None = None,
    earlier: dict[str, Baseline] | None = None,
) -> list[tuple[str, Outcome]]:
    gpus = make_gpus() if devices is None else devices
    found: tuple[Finding, ...] = judge_collective_speed(measurement, gpus, environment or {}, earlier or {})
    return [(finding.code, finding.outcome) for finding in found]


def baseline(measurement: CollectiveMeasurement, median_gb: float, count: int = 5) -> dict[str, Baseline]:
    metric = metric_name(measurement.results[0], measurement)
    return {metric: Baseline(metric, "B/s", None, median_gb * GB, count, median_gb * GB, TAKEN_AT)}


def test_eight_h100_at_their_published_speed_are_as_expected() -> None:
    assert judge(on_gpus(plateau(478))) == [("collective.speed", Outcome.PASS)]


def test_eight_h100_below_the_floor_are_slow() -> None:
    assert judge(on_gpus(plateau(410))) == [("collective.slow", Outcome.WARN)]


@pytest.mark.parametrize(
    "measurement",
    [
        on_gpus(plateau(10), backend="gloo"),
        on_gpus(make_result(64 * 1024, busbw_bytes_per_second=1 * GB)),  # latency, not the plateau
        on_gpus(plateau(10), ranks_share_gpu=True),
        on_gpus(plateau(10), world_size=1),
        on_gpus(plateau(10, verified=False, wrong_elements=3)),
        on_gpus(plateau(10, op="broadcast")),  # nobody has published one
    ],
)
def test_what_nothing_is_known_of_is_not_judged(measurement: CollectiveMeasurement) -> None:
    assert judge(measurement) == []


def test_another_number_or_model_of_gpus_is_not_judged_by_the_table() -> None:
    assert judge(on_gpus(plateau(10), world_size=4), make_gpus(4)) == []
    assert judge(on_gpus(plateau(10)), make_gpus(name="NVIDIA H800")) == []
    mixed = [*make_gpus(7), *make_gpus(1, "NVIDIA H200")]
    assert judge(on_gpus(plateau(10)), mixed) == []


@pytest.mark.parametrize("environment", [{"NCCL_NVLS_ENABLE": "0"}, {"NCCL_ALGO": "Ring"}])
def test_nccl_without_nvls_is_not_held_against_figures_with_it(environment: dict[str, str]) -> None:
    assert judge(on_gpus(plateau(370)), environment=environment) == [("collective.speed", Outcome.PASS)]
    h200 = make_gpus(name="NVIDIA H200")
    assert judge(on_gpus(plateau(360)), h200, environment) == [("collective.speed", Outcome.PASS)]
    assert judge(on_gpus(plateau(300)), h200, environment) == [("collective.slow", Outcome.WARN)]


@pytest.mark.parametrize("name", [H100, "NVIDIA H200"])
def test_a_ring_where_nvls_is_off_is_no_slow_link(name: str) -> None:
    assert judge(on_gpus(plateau(365)), make_gpus(name=name)) == [("collective.speed", Outcome.PASS)]
    assert judge(on_gpus(plateau(300)), make_gpus(name=name)) == [("collective.slow", Outcome.WARN)]


def test_the_own_past_judges_where_no_table_does() -> None:
    measurement = on_gpus(plateau(100), world_size=4)
    gpus = make_gpus(4, "NVIDIA A10")
    assert judge(measurement, gpus, earlier=baseline(measurement, 101)) == [
        ("collective.speed", Outcome.PASS)
    ]
    assert judge(measurement, gpus, earlier=baseline(measurement, 120)) == [("collective.slow", Outcome.WARN)]
    assert judge(measurement, gpus, earlier=baseline(measurement, 120, count=2)) == []


def test_the_worst_opinion_counts() -> None:
    measurement = on_gpus(plateau(470))
    assert judge(measurement, earlier=baseline(measurement, 500)) == [("collective.slow", Outcome.WARN)]


def test_the_algorithm_is_told_by_its_settings_or_by_a_speed_beyond_the_links() -> None:
    gpus = make_gpus()
    assert find_algorithm(plateau(480), gpus, {}) == "NVLS"  # 18 links of 25 GB/s carry 450
    assert find_algorithm(plateau(480), gpus, {"NCCL_ALGO": "Ring"}) == "Ring"
    assert isinstance(find_algorithm(plateau(370), gpus, {}), Missing)
    assert isinstance(find_algorithm(plateau(370), gpus, {"NCCL_ALGO": "^NVLS"}), Missing)
    assert isinstance(find_algorithm(plateau(480), [make_device(0)], {}), Missing)


def test_metrics_name_the_method() -> None:
    measurement = on_gpus(plateau(1))
    assert metric_name(plateau(1), measurement) == f"all_reduce.float32.{8 * GIB}.nccl.8.busbw"
    gathered = plateau(1, op="all_gather", reduce=NOT_SUPPORTED, in_place=False)
    assert metric_name(gathered, measurement) == f"all_gather.out_of_place.float32.{8 * GIB}.nccl.8.busbw"
    assert ".max." in metric_name(plateau(1, reduce="max"), measurement)


def test_samples_are_of_the_largest_size_of_each_operation() -> None:
    results = (make_result(1024), make_result(GIB), plateau(5), plateau(6, op="broadcast"))
    assert [result.size_bytes for result in largest_results(results)] == [8 * GIB, 8 * GIB]
    assert [sample.value for sample in samples_of(on_gpus(*results))] == [5 * GB, 6 * GB]
