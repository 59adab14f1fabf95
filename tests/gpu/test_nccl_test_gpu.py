"""`gpudiag nccl-test` on a real GPU: one NCCL rank, exact data, times from CUDA events."""

import json
import subprocess
import sys
from typing import Any

import pytest

from gpudiag.model.reading import Missing
from gpudiag.probe.inventory import take_snapshot

pytestmark = [pytest.mark.gpu, pytest.mark.ranks, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def torch_facts():
    facts = take_snapshot(("nvml", "torch"), 20.0).torch
    if isinstance(facts, Missing) or facts.context_starts is not True:
        pytest.skip("no GPU here that torch can start a context on")
    return facts


def run_nccl_test(*flags: str) -> tuple[int, Any]:
    command = [sys.executable, "-m", "gpudiag", "nccl-test", *flags, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, json.loads(done.stdout)


def test_one_nccl_rank_is_exact_and_has_no_bus_bandwidth(torch_facts):
    status, document = run_nccl_test("--nproc", "1", "--max-bytes", "256M", "--step-factor", "16")
    assert (status, document["outcome"], document["backend"]) == (0, "pass", "nccl")
    assert document["ranks"][0]["device_uuid"].startswith("GPU-")
    for result in document["results"]:
        assert result["verified"] is True
        assert result["busbw_bytes_per_second"] is None
        assert result["isolated_p50_seconds"] > 0


def test_every_operation_and_dtype_is_exact_on_one_gpu(torch_facts):
    flags = (
        "--op",
        "all",
        "--dtype",
        "all",
        "--min-bytes",
        "1003",
        "--max-bytes",
        "1003",
        "--iterations",
        "3",
    )
    status, document = run_nccl_test("--nproc", "1", *flags)
    assert (status, document["outcome"]) == (0, "pass")
    assert all(result["verified"] is True for result in document["results"])


def test_a_flipped_bit_on_the_gpu_is_found(torch_facts):
    status, document = run_nccl_test("--nproc", "1", "--max-bytes", "1K", "--inject", "bitflip:0@3")
    assert (status, document["findings"][0]["code"]) == (1, "collective.corrupted")


def test_two_ranks_share_the_gpu_where_nccl_can_and_are_refused_where_it_cannot(torch_facts):
    if torch_facts.device_count != 1:
        pytest.skip("needs a machine with one GPU")
    version = tuple(int(part) for part in str(torch_facts.nccl_version).split("."))
    command = [sys.executable, "-m", "gpudiag", "nccl-test", "--nproc", "2", "--max-bytes", "1K", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if version >= (2, 30):
        document = json.loads(done.stdout)
        assert (document["outcome"], document["ranks_share_gpu"]) == ("pass", True)
    else:
        assert done.returncode == 2
        assert "2.30" in done.stderr
