import json
import sys

import pytest

from tests.cli.simulated import run_on, simulated_machine
from tests.ranks.nccl_test_command import run

pytestmark = [pytest.mark.ranks, pytest.mark.sliced]


def bandwidth(*flags):
    return run(sys.executable, "-m", "gpudiag", "bandwidth", *flags)


def test_the_cpu_is_measured_where_there_is_no_gpu(tmp_path):
    output, events = tmp_path / "bandwidth.json", tmp_path / "events"
    done = bandwidth("--json", "--output", str(output), "--events", str(events))
    assert done.status == 3, done.error  # measured, and no GPU was: docs/decisions/0001
    report = done.document()
    assert json.loads(output.read_text()) == report
    active = report["measures"]["active"]
    assert active["device_kind"] == "cpu"
    assert {copy["rank"] for copy in active["bandwidth"]} == set(range(active["world_size"]))
    assert all(copy["bytes_per_second"] > 0 and copy["wrong_bytes"] == 0 for copy in active["bandwidth"])
    assert all(product["flops_per_second"] > 0 for product in active["compute"])
    assert [json.loads(line)["kind"] for line in events.read_text().splitlines()][-1] == "outcome"
    assert done.left_behind == ()


def test_only_the_named_test_runs():
    active = bandwidth("--json", "--test", "matmul").document()["measures"]["active"]
    assert active["tests"] == ["matmul"]
    assert active["bandwidth"] == []


def test_a_test_that_needs_a_gpu_is_no_pass_without_one():
    done = bandwidth("--json", "--test", "host_to_device")
    assert done.status == 3
    results = {result["check"]: result for result in done.document()["results"]}
    assert results["bandwidth.host_device"]["outcome"] == "error"
    assert "needs a GPU" in results["bandwidth.host_device"]["reason"]


def test_simulated_gpus_are_not_measured_and_do_not_pass():
    with simulated_machine("h100x8") as session:
        done = run_on(session, "bandwidth")
    assert done.status == 3
    assert "simulated" in done.out
    assert done.left == ()


def test_an_unknown_test_is_told_with_the_nearest():
    done = bandwidth("--test", "memory_cpy")
    assert done.status == 2
    assert "memory_copy" in done.error
