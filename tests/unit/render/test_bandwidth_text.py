from dataclasses import replace

from gpudiag.model.active import ActiveMeasurement, BandwidthResult, ComputeResult
from gpudiag.model.reading import NOT_ASKED
from gpudiag.model.report import Measures
from gpudiag.render.bandwidth_text import render_bandwidth
from tests.unit.model.nouns import make_device, make_snapshot
from tests.unit.render.reports import make_report, make_result

GPUS = make_snapshot(make_device(0), make_device(1))


def copy(test="memory_copy", rank=0, uuid="GPU-0", **values):
    told = {"size_bytes": 2**30, "iterations": 20, "time_p50_seconds": 1e-3} | {
        "time_best_seconds": 9e-4,
        "bytes_per_second": 2.1e12,
        "wrong_bytes": 0,
    }
    return BandwidthResult(test=test, rank=rank, device_uuid=uuid, **{**told, **values})


def product(rank=0, uuid="GPU-0"):
    return ComputeResult(rank, uuid, "bfloat16", 8192, 20, 1.6e-3, 1.5e-3, 6.9e14)


def report(copies=(), products=(), device_kind="cuda", snapshot=GPUS):
    measured = ActiveMeasurement(
        device_kind=device_kind, world_size=2, host="a1", torch_version="2.13.0", tests=("memory_copy",),
        done=("memory_copy",), bandwidth=tuple(copies), compute=tuple(products), determinism=(), patterns=(),
        sustained=(), telemetry=(), ranks=(), incidents=(), untested=(), seconds=3.0,
    )  # fmt: skip
    return replace(
        make_report(make_result("active.ranks"), snapshot=snapshot), measures=Measures(active=measured)
    )


def test_each_copy_is_a_line_in_order_of_tests_and_ranks():
    peer = copy("peer_copy", peer=1, peer_uuid="GPU-1", bytes_per_second=3.9e11)
    text = render_bandwidth(report([copy(rank=1, uuid="GPU-1", concurrent=True), copy(), peer], [product()]))
    lines = text.splitlines()
    assert lines[0].startswith("PASS a1: ")
    assert lines[2] == "Measured: 2 GPUs, torch 2.13.0"
    places = [
        next(i for i, line in enumerate(lines) if words in line) for words in (" GPU 0 ", "all at once")
    ]
    assert places == sorted(places)
    assert any("GPU 0 to GPU 1" in line and " 390 " in line for line in lines)
    assert any(line.startswith("bfloat16 GPU 0") and line.endswith("690  736") for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_a_rank_on_the_cpu_is_called_one():
    text = render_bandwidth(report([copy(uuid=NOT_ASKED)], device_kind="cpu"))
    assert "2 CPU ranks" in text
    assert "rank 0" in text


def test_wrong_bytes_are_counted_in_the_line():
    assert any(line.endswith(" 7") for line in render_bandwidth(report([copy(wrong_bytes=7)])).splitlines())


def test_without_a_measurement_the_report_stands_alone():
    text = render_bandwidth(make_report(make_result("active.ranks")))
    assert "COPY" not in text
    assert text.lstrip().startswith("PASS")
