"""DeepSpeed, Horovod and TensorFlow for real: installed by tools/install_frameworks.py, in environments of their own."""

import os
from typing import Any

import pytest

from tests.ranks.nccl_test_command import run
from tests.ranks.train_command import TRAIN, train

_FOLDER = os.environ.get("GPUDIAG_FRAMEWORKS", "")
pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.frameworks,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not _FOLDER,  # given and not there is a failure, not a skip
        reason="needs DeepSpeed, Horovod and TensorFlow: tools/install_frameworks.py FOLDER, GPUDIAG_FRAMEWORKS=FOLDER",
    ),
]

TORCH = ("--python", f"{_FOLDER}/torch/bin/python")
TENSORFLOW = ("--python", f"tensorflow={_FOLDER}/tensorflow/bin/python")
STRATEGIES = ("zero0", "zero1", "zero2", "zero3", "horovod", "mirrored")


def strategies_of(*flags: str) -> dict[str, Any]:
    completed = train(*TORCH, *TENSORFLOW, *flags, "--json")
    assert completed.left_behind == ()
    return {result["strategy"]: result for result in completed.document()["strategies"]}


def test_every_strategy_is_proved_on_two_workers() -> None:
    results = strategies_of("--strategy", "all")
    assert results.pop("data-parallel")["outcome"] == "skip"
    assert set(results) >= set(STRATEGIES)
    for name, result in results.items():
        assert (name, result["outcome"], result["findings"]) == (name, "pass", [])
        assert (result["verified"], result["world_size"]) == (True, 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_proved_with_the_frameworks_own_loss_scaling(dtype: str) -> None:
    results = strategies_of(
        "--strategy", "zero0,zero1,zero2,zero3,horovod", "--dtype", dtype, "--workload", "classification"
    )
    assert {name: result["outcome"] for name, result in results.items()} == dict.fromkeys(results, "pass")


@pytest.mark.parametrize("fault", ["nosync:3", "sumgrad", "badinit", "onebias"])
def test_horovod_with_a_fault_fails(fault: str) -> None:
    (result,) = strategies_of("--strategy", "horovod", "--inject", fault).values()
    assert (result["outcome"], result["verified"]) == ("fail", False)


@pytest.mark.parametrize("fault", ["samedata", "nan:1@3", "uneven", "kill:1@3"])
def test_zero_with_a_fault_fails(fault: str) -> None:
    (result,) = strategies_of("--strategy", "zero2", "--inject", fault).values()
    assert result["outcome"] == "fail"


def test_the_launchers_of_deepspeed_and_horovod_are_understood() -> None:
    folder = f"{_FOLDER}/torch/bin"
    path = f"PATH={folder}:{os.environ['PATH']}"
    tail = TRAIN[1:]
    horovodrun = run(
        "env",
        path,
        f"{folder}/horovodrun",
        "-np",
        "2",
        "--gloo",
        f"{folder}/python",
        *tail,
        "--strategy",
        "horovod",
    )
    assert horovodrun.status == 0
    assert "PASS CPU ONLY: horovod on 2 ranks" in horovodrun.output
    assert "ranks by horovodrun" in horovodrun.output
    deepspeed = run(
        "env",
        path,
        f"{folder}/deepspeed",
        "--num_accelerators",
        "2",
        "--module",
        "gpudiag",
        *tail[2:],
        "--strategy",
        "zero2",
    )
    assert deepspeed.status == 0
    assert "PASS CPU ONLY: zero2 on 2 ranks" in deepspeed.output
