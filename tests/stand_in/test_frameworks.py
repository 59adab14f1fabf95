"""DeepSpeed, Accelerate and Horovod where they find GPUs, as tools/install_frameworks.py installs them."""

import os
from pathlib import Path

import pytest

from tests.cuda_stand_in.machine import TOOLKIT

FOLDER = Path(os.environ.get("GPUDIAG_FRAMEWORKS", "nowhere"))
PYTHON = str(FOLDER / "torch" / "bin" / "python")
WITH_TOOLKIT = {"CUDA_HOME": str(TOOLKIT)}
pytestmark = [
    pytest.mark.stand_in,
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.frameworks,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        "GPUDIAG_FRAMEWORKS" not in os.environ,  # given and not there is a failure, not a skip
        reason="needs DeepSpeed, Horovod and Accelerate: make test-frameworks",
    ),
]


def need(*frameworks: str) -> None:
    for framework in frameworks:
        absent = FOLDER / f"{framework}.absent"
        if absent.exists():
            pytest.skip(f"{framework} is not installed: {absent.read_text().strip()}")


@pytest.mark.parametrize(
    ("framework", "strategies"), [("deepspeed", "zero0,zero1,zero2,zero3"), ("accelerate", "accelerate")]
)
def test_each_strategy_is_the_maths_of_one_process_on_two_gpus(on_gpus, framework, strategies):
    need(framework)
    flags = ("--nproc", "2", "--steps", "3", "--strategy", strategies, "--python", PYTHON, "--json")
    ended = on_gpus("h100x8", "train", *flags, variables=WITH_TOOLKIT)
    document = ended.document()
    assert ended.status == 0, document["findings"]
    assert [result["strategy"] for result in document["strategies"]] == strategies.split(",")
    for result in document["strategies"]:
        assert (result["outcome"], result["verified"], result["world_size"]) == ("pass", True, 2), result


def test_deepspeed_trains_on_gpus_without_a_toolkit(on_gpus):
    need("deepspeed")
    flags = ("--nproc", "2", "--steps", "3", "--strategy", "zero1", "--python", PYTHON, "--json")
    ended = on_gpus("h100x8", "train", *flags, variables={"CUDA_HOME": "/nowhere"})
    assert (ended.status, ended.document()["strategies"][0]["verified"]) == (0, True)


def test_a_horovod_without_cuda_is_left_out_with_the_reason(on_gpus):
    need("horovod")
    flags = ("--nproc", "2", "--steps", "3", "--strategy", "ddp,horovod", "--python", PYTHON, "--json")
    ended = on_gpus("h100x8", "train", *flags)
    outcomes = {result["strategy"]: result["outcome"] for result in ended.document()["strategies"]}
    assert (ended.status, outcomes) == (0, {"ddp": "pass", "horovod": "skip"})
