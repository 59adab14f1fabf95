"""Every limit of a measured speed against every published figure: no healthy board fails or warns.

Each figure is put where a run would have measured it, and the checks of the product judge it.
"""

from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.catalogue import describe_limits
from gpudiag.checks.ranks.collective import judge_collective_speed
from gpudiag.checks.runner import run_checks
from gpudiag.model.active import DEVICE_TO_HOST, HOST_TO_DEVICE, MEMORY_COPY, PEER_COPY, ComputeResult
from gpudiag.model.device import Device, NvLink, PeerAccess
from gpudiag.model.finding import Outcome
from gpudiag.reference.expected_speeds import Curve, curves
from gpudiag.reference.speeds import PublishedSpeed, published_speeds, speed_limits
from tests.unit.checks.active_measures import gpu_snapshot, judged_by, measure_gpus
from tests.unit.collectives.measurements import make_measurement, make_result
from tests.unit.model.nouns import NOT_SUPPORTED, make_device
from tests.walking import walk

CHECKS = {check.name: check for check in BUILTIN}
SPEEDS = published_speeds()
SWITCH = "00000000:05:00.0"
# What the boards of the figures say of themselves: compute capability, cores, clock.
BOARDS = {
    "NVIDIA A100-SXM4-40GB": ("8.0", 6912, 1410),
    "NVIDIA A100-PCIE-40GB": ("8.0", 6912, 1410),
    "NVIDIA H100 PCIe": ("9.0", 14592, 1755),
    "NVIDIA L4": ("8.9", 7424, 2040),
    "Tesla V100-SXM2-32GB": ("7.0", 5120, 1530),
    "Tesla T4": ("7.5", 2560, 1590),
    "NVIDIA H100 80GB HBM3": ("9.0", 16896, 1830),
    "NVIDIA H200": ("9.0", 16896, 1830),
    "NVIDIA B200": ("10.0", 18944, 1850),
}


def of(*tests: str) -> list[Any]:
    """The figures of these tests, as parameters with a name."""
    return [
        pytest.param(speed, id=f"{speed.setup}-{speed.dtype or speed.kind}-{speed.value:.4g}")
        for speed in SPEEDS
        if speed.test in tests
    ]


def findings(check: str, measured: Any, snapshot: Any) -> list[tuple[str, str]]:
    result = run_checks(judged_by(measured, snapshot), (CHECKS[check],))[0]
    assert result.outcome is not Outcome.ERROR, result.reason
    return [(finding.code, finding.message) for finding in result.findings]


def of_the_name(speed: PublishedSpeed) -> dict[str, Any]:
    return {"name": speed.models[0]} if speed.models else {"name": "NVIDIA X900"}


@pytest.mark.parametrize("speed", of("memory_copy"))
def test_the_memory_of_a_healthy_board_is_not_slow(speed: PublishedSpeed) -> None:
    clock = round(speed.ideal / 2e6)  # a bus of one byte, two words a clock
    snapshot = gpu_snapshot(1, memory_bus_width_bits=8, memory_clock_max_mhz=clock, **of_the_name(speed))
    measured = measure_gpus(snapshot)
    (copy,) = [one for one in measured.bandwidth if one.test == MEMORY_COPY]
    measured = replace(measured, bandwidth=(replace(copy, bytes_per_second=speed.value),))
    assert findings("bandwidth.memory", measured, snapshot) == []


@pytest.mark.parametrize("speed", of("h2d", "d2h"))
def test_the_link_to_the_host_of_a_healthy_board_is_not_slow(speed: PublishedSpeed) -> None:
    generation = {15.75e9: 3, 31.5e9: 4, 63e9: 5}[speed.ideal]
    snapshot = gpu_snapshot(1)
    measured = measure_gpus(snapshot)
    copies = tuple(
        replace(one, bytes_per_second=speed.value)
        for one in measured.bandwidth
        if one.test in (HOST_TO_DEVICE, DEVICE_TO_HOST)
    )
    telemetry = tuple(replace(point, pcie_generation=generation) for point in measured.telemetry)
    measured = replace(measured, bandwidth=copies, telemetry=telemetry)
    assert findings("bandwidth.host_device", measured, snapshot) == []


def linked(speed: PublishedSpeed, *, straight: bool) -> tuple[Device, ...]:
    """Two GPUs with the links of the figure, at the line's rate that NVML gives, straight or by a switch."""
    payload, line = (50e9, 53.125e9) if speed.ideal > 450e9 else (25e9, 26.562e9)
    ids = [make_device(place).id.bus_id for place in range(2)]
    made = []
    for place in range(2):
        remote = ids[1 - place] if straight else SWITCH
        links = tuple(NvLink(link, True, remote, 0, 0, 0, 0) for link in range(round(speed.ideal / payload)))
        peers = (PeerAccess(str(ids[1 - place]), "system", "ok", "ok"),)
        made.append(
            make_device(place, name="NVIDIA X900", nvlinks=links, nvlink_bytes_per_second=line, peers=peers)
        )
    return tuple(made)


@pytest.mark.parametrize("speed", of("p2p"))
@pytest.mark.parametrize("straight", [True, False], ids=["straight", "switch"])
def test_copies_between_healthy_boards_are_not_slow(speed: PublishedSpeed, straight: bool) -> None:
    snapshot = replace(gpu_snapshot(2), devices=linked(speed, straight=straight))
    measured = measure_gpus(snapshot)
    copies = tuple(
        replace(one, bytes_per_second=speed.value) for one in measured.bandwidth if one.test == PEER_COPY
    )
    measured = replace(measured, bandwidth=copies)
    assert findings("bandwidth.peer", measured, snapshot) == []
    slow = tuple(replace(one, bytes_per_second=0.5 * speed.ideal) for one in copies)
    assert findings("bandwidth.peer", replace(measured, bandwidth=slow), snapshot)  # it was judged


@pytest.mark.parametrize("speed", of("matmul"))
@pytest.mark.parametrize("model", range(2))
def test_products_on_a_healthy_board_are_not_slow(speed: PublishedSpeed, model: int) -> None:
    name = speed.models[min(model, len(speed.models) - 1)]
    capability, cores, clock = BOARDS.get(name) or BOARDS[speed.models[0]]
    snapshot = gpu_snapshot(1, name=name, compute_capability=capability, cuda_cores=cores)
    measured = measure_gpus(snapshot)
    uuid = snapshot.devices[0].id.uuid
    product = ComputeResult(0, uuid, speed.dtype, 8192, 20, 1e-3, 1e-3, speed.value, 0.5, 2.5)
    reasons = ("sw_power_cap",) if speed.power_capped else ()
    telemetry = tuple(
        replace(point, sm_clock_mhz=clock, clocks_event_reasons=reasons) for point in measured.telemetry
    )
    measured = replace(measured, compute=(product,), telemetry=telemetry)
    assert findings("compute.matmul", measured, snapshot) == []


@walk([curve for curve in curves() if curve.nodes == 1], lambda curve: f"{curve.setup}, {curve.operation}")
def test_a_healthy_machine_is_not_slow_for_the_figures_of_others(curve: Curve) -> None:
    for model in curve.models:
        links = tuple(NvLink(link, True, NOT_SUPPORTED, 0, 0, 0, 0) for link in range(18))
        gpus = [
            make_device(place, name=model, nvlinks=links, nvlink_bytes_per_second=curve.ideal / 18)
            for place in range(curve.gpus)
        ]
        for size, speed in curve.points:
            result = make_result(size, busbw_bytes_per_second=speed, op=curve.operation)
            measured = make_measurement(result, backend="nccl", device_kind="cuda", world_size=curve.gpus)
            judged = judge_collective_speed(measured, gpus, {}, {})
            assert [finding.code for finding in judged] in ([], ["collective.speed"]), (model, size)


def test_every_limit_says_where_it_is_from_and_what_the_checks_say_of_themselves_agrees() -> None:
    limits = speed_limits()
    assert all(limit.source for limit in limits.values())
    assert all(limit.fail is None or limit.fail < limit.warn for limit in limits.values())
    for check, limit in (
        ("bandwidth.memory", "memory.derived"),
        ("bandwidth.host_device", "host_link.derived"),
        ("bandwidth.peer", "peer_link.derived"),
        ("compute.matmul", "matrix.derived"),
        ("performance.drift", "history"),
    ):
        assert f"{100 * limits[limit].warn:.0f} %" in describe_limits(CHECKS[check])
