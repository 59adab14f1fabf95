"""`gpudiag train` on GPUs that compute on the processor: each strategy of torch equals one process."""

import pytest

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(300)]


def test_each_strategy_is_the_maths_of_one_process(on_gpus):
    flags = ("--strategy", "data-parallel,ddp,fsdp2", "--steps", "4", "--json")
    ended = on_gpus("h100x8", "train", "--nproc", "2", *flags)
    document = ended.document()
    assert ended.status == 0, document["findings"]
    for result in document["strategies"]:
        assert (result["outcome"], result["verified"], result["world_size"]) == ("pass", True, 2), result[
            "strategy"
        ]
        assert result["samples_per_second"] > 0
        assert result["device_memory_bytes"] > 0


def test_data_parallel_divides_one_batch_over_four_gpus_in_half_precision(on_gpus):
    flags = (
        "--strategy",
        "data-parallel",
        "--dtype",
        "bfloat16",
        "--workload",
        "transformer",
        "--steps",
        "3",
        "--json",
    )
    ended = on_gpus("h100x8", "train", "--nproc", "4", *flags)
    document = ended.document()
    assert ended.status == 0, document["findings"]
    (result,) = document["strategies"]
    assert (result["verified"], result["world_size"], len(result["ranks"])) == (True, 4, 1)


def test_two_ranks_share_the_only_gpu_where_nccl_can(on_gpus):
    one = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_STAND_IN_NCCL": "2.30.3"}
    ended = on_gpus("h100x8", "train", "--nproc", "2", "--steps", "3", "--json", variables=one)
    document = ended.document()
    assert ended.status == 0, document["findings"]
    assert document["strategies"][0]["verified"] is True
