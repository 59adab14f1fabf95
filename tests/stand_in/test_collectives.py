"""`gpudiag nccl-test` on GPUs that compute on the processor: every operation, type and fault."""

import pytest

from tests.stand_in.running import run_on, run_shown

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(300)]

SMALL = ("--step-factor", "16", "--iterations", "3", "--warmup", "1")


def test_every_operation_and_type_is_exact_on_two_gpus(on_gpus):
    flags = ("--op", "all", "--dtype", "all", "--min-bytes", "1003", "--max-bytes", "1003")
    ended = on_gpus("h100x8", "nccl-test", "--nproc", "2", *flags, *SMALL, "--json")
    document = ended.document()
    assert ended.status == 0, document["findings"]
    assert document["backend"] == "nccl"
    assert {result["op"] for result in document["results"]} >= {
        "all_reduce",
        "scatter",
        "send_recv",
        "barrier",
    }
    assert {"float8_e4m3fn", "bfloat16", "int64"} <= {result["dtype"] for result in document["results"]}
    assert all(result["verified"] is not False for result in document["results"])


def test_ways_that_a_device_does_not_have_are_told_and_the_run_goes_on(on_gpus):
    """The stand-in has no CUDA graphs, and its allocator no pools that could be registered."""
    flags = ("--graph", "--buffers", "symmetric", "--op", "all_reduce,hypercube", "--max-bytes", "64")
    document = on_gpus("h100x8", "nccl-test", "--nproc", "2", *flags, *SMALL, "--json").document()
    assert document["outcome"] == "pass", document["findings"]
    assert all(result["verified"] for result in document["results"])
    assert (document["graph"], document["buffers"]) == (None, None)
    assert document["missing"]["graph"].startswith("not_supported")
    assert document["missing"]["buffers"] != "not_asked"


def test_eight_gpus_of_eight_are_used(on_gpus):
    document = on_gpus("h100x8", "nccl-test", "--max-bytes", "64", *SMALL, "--json").document()
    assert (document["outcome"], document["world_size"]) == ("pass", 8)
    assert len({rank["device_uuid"] for rank in document["ranks"]}) == 8


def test_a_slow_gpu_of_four_is_localised_by_sends_between_pairs(on_gpus):
    """The speeds are the processor's: others may look slow beside it."""
    flags = ("--nproc", "4", "--localise", "--inject", "slow:1:100", "--max-bytes", "64")
    document = on_gpus("h100x8", "nccl-test", *flags, *SMALL, "--json").document()
    slow = [one["subject"] for one in document["findings"] if one["code"] == "network.node_slow"]
    assert 1 in [subject.get("rank") for subject in slow], document["findings"]
    exchanges = document["localisation"]["exchanges"]
    assert {one["phase"] for one in exchanges} == {"screen", "load", "confirm"}
    assert all(one["bytes_per_second"] for one in exchanges)


def test_a_gpu_without_memory_is_named_by_its_rank(on_gpus):
    faults = {"CUDA_STAND_IN_FAULTS": "oom:1@60"}
    ended = on_gpus("h100x8", "nccl-test", "--nproc", "2", "--max-bytes", "1K", *SMALL, variables=faults)
    assert ended.status == 3  # it need not be the GPU's fault
    assert "rank.out_of_gpu_memory" in ended.output
    assert "rank 1 raised OutOfMemoryError" in ended.output


def test_an_asynchronous_error_is_named_by_its_rank(on_gpus):
    faults = {"CUDA_STAND_IN_FAULTS": "error:1@60"}
    ended = on_gpus("h100x8", "nccl-test", "--nproc", "2", "--max-bytes", "1K", *SMALL, variables=faults)
    assert ended.status == 1
    assert "rank 1 raised AcceleratorError" in ended.output
    assert "illegal memory access" in ended.output


def test_a_lost_gpu_is_named_and_the_others_are_tested(on_gpus):
    ended = on_gpus("h100x8+lost:3", "nccl-test", "--nproc", "2", "--max-bytes", "64", *SMALL, "--json")
    document = ended.document()
    assert (ended.status, [finding["code"] for finding in document["findings"]]) == (1, ["gpu.lost"])
    assert all(result["verified"] for result in document["results"])


def test_ranks_that_a_launcher_shows_one_gpu_each_run_and_those_on_one_are_named(extension):
    flags = ("nccl-test", "--max-bytes", "64", *SMALL)
    own = run_shown("h100x8", ("0", "1"), *flags)
    assert [ended.status for ended in own] == [0, 0], own[0].error
    shared = run_shown("h100x8", ("1", "1"), *flags)
    assert [ended.status for ended in shared] == [1, 1]
    assert "ranks 0 and 1 both use GPU-" in " ".join(shared[0].output.split())


def test_two_ranks_on_mig_instances_of_one_gpu_are_refused_as_nccl_would(extension):
    listed = run_on("h100-mig", "list", "--sources", "nvml", "--json").document()["devices"][0][
        "mig_instances"
    ]
    shown = [listed[0]["uuid"], listed[2]["uuid"]]
    ended = run_shown("h100-mig", shown, "nccl-test", "--max-bytes", "64", *SMALL)
    assert [one.status for one in ended] == [2, 2], ended[0].output
    assert "two NCCL ranks on one GPU" in ended[0].error


def test_a_stuck_kernel_is_told_by_the_length_of_the_burst_and_not_by_the_stage(on_gpus):
    faults = {"CUDA_STAND_IN_FAULTS": "stuck:1@150"}
    flags = ("--nproc", "2", "--max-bytes", "1K", "--step-factor", "16", "--iterations", "50", "--json")
    ended = on_gpus("h100x8", "nccl-test", *flags, variables=faults)
    finding = ended.document()["findings"][0]
    assert (ended.status, finding["code"]) in {(1, "rank.silent"), (1, "collective.stalled")}, finding
    assert "synchronize uint8" not in finding["message"]


def test_a_size_beyond_the_memory_is_a_mistake_of_the_caller(on_gpus):
    ended = on_gpus("h100x8", "nccl-test", "--nproc", "2", "--max-bytes", "64G")
    assert ended.status == 2
    assert "--max-bytes" in ended.error
