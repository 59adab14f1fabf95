"""DeepSpeed, Horovod, Accelerate and TensorFlow for real, as tools/install_frameworks.py installs them.

What could not be installed is skipped with the reason that the installer left.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.train_outside_faults import cause_of, names_cause
from benchmarks.train_outside_faults import train_with as train_with_fault
from tests.ranks import pretenders
from tests.ranks.nccl_test_command import Completed, run
from tests.ranks.planting import train_with
from tests.ranks.train_command import TRAIN, train

_FOLDER = Path(os.environ.get("GPUDIAG_FRAMEWORKS", "nowhere"))
LIMIT_SECONDS = 200.0  # proves that nothing hangs: up to nine strategies on a busy machine
pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.frameworks,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        "GPUDIAG_FRAMEWORKS" not in os.environ,  # given and not there is a failure, not a skip
        reason="needs DeepSpeed, Horovod and TensorFlow: make test-frameworks",
    ),
]

TORCH = ("--python", f"{_FOLDER}/torch/bin/python")
TENSORFLOW = ("--python", f"tensorflow={_FOLDER}/tensorflow/bin/python")
STRATEGIES = {
    "zero0": "deepspeed",
    "zero1": "deepspeed",
    "zero2": "deepspeed",
    "zero3": "deepspeed",
    "horovod": "horovod",
    "accelerate": "accelerate",
    "mirrored": "tensorflow",
}


def why_absent(framework: str) -> str | None:
    """Why the installer could not install it; None if it did."""
    absent = _FOLDER / f"{framework}.absent"
    return f"{framework} is not installed: {absent.read_text().strip()}" if absent.exists() else None


def need(*frameworks: str) -> None:
    for framework in frameworks:
        if reason := why_absent(framework):
            pytest.skip(reason)


def results_of(*flags: str) -> dict[str, Any]:
    completed = train(*TORCH, *TENSORFLOW, *flags, "--json", limit_seconds=LIMIT_SECONDS)
    assert completed.left_behind == (), completed.error
    return {result["strategy"]: result for result in completed.document()["strategies"]}


def codes_of(result: Any) -> list[str]:
    return [finding["code"] for finding in result["findings"]]


def test_every_strategy_is_proved_on_two_workers() -> None:
    results = results_of("--strategy", "all")
    assert results.pop("data-parallel")["outcome"] == "skip"
    absent = {name: reason for name, framework in STRATEGIES.items() if (reason := why_absent(framework))}
    assert {results.pop(name)["outcome"] for name in absent} <= {"skip"}
    for name, result in results.items():
        assert (name, result["outcome"], result["findings"]) == (name, "pass", [])
        assert (result["verified"], result["world_size"]) == (True, 2)
    assert set(results) >= {"ddp", "fsdp2", *STRATEGIES} - set(absent)
    if absent:
        pytest.skip(f"the others were proved; {'; '.join(absent.values())}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_proved_with_the_frameworks_own_loss_scaling(dtype: str) -> None:
    need("deepspeed", "horovod")
    flags = ("--dtype", dtype, "--workload", "classification")
    results = results_of("--strategy", "zero0,zero1,zero2,zero3,horovod", *flags)
    assert {name: (result["outcome"], codes_of(result)) for name, result in results.items()} == dict.fromkeys(
        results, ("pass", [])
    )


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("nosync:3", "train.not_averaged"),
        ("sumgrad", "train.gradients_summed"),
        ("badinit", "train.initial_parameters"),
        ("onebias", "train.tensor_not_averaged"),
    ],
)
def test_horovod_with_a_fault_fails(fault: str, code: str) -> None:
    need("horovod")
    (result,) = results_of("--strategy", "horovod", "--inject", fault).values()
    assert (result["outcome"], result["verified"], codes_of(result)[0]) == ("fail", False, code)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("samedata", "train.same_samples"),
        ("nan:1@3", "train.not_finite"),
        ("uneven", "train.uneven_steps"),
        ("kill:1@3", "rank.died"),
    ],
)
def test_zero_with_a_fault_fails(fault: str, code: str) -> None:
    need("deepspeed")
    (result,) = results_of("--strategy", "zero2", "--inject", fault).values()
    assert (result["outcome"], codes_of(result)[0]) == ("fail", code)


def test_accelerate_with_a_fault_of_the_start_fails() -> None:
    need("accelerate")
    (result,) = results_of("--strategy", "accelerate", "--inject", "badinit").values()
    assert (result["outcome"], codes_of(result)) == ("fail", ["train.initial_parameters"])


@pytest.mark.parametrize("strategy", [pretenders.HOROVOD, pretenders.ACCELERATE, pretenders.MIRRORED])
def test_one_worker_that_pretends_to_be_parallel_fails(strategy: str) -> None:
    need(STRATEGIES[strategy])
    program = (sys.executable, "-m", "tests.ranks.pretenders", strategy)
    completed = run(*program, *TORCH, *TENSORFLOW, "--json", limit_seconds=LIMIT_SECONDS)
    (result,) = completed.document()["strategies"]
    assert (completed.status, result["outcome"], codes_of(result)[0]) == (1, "fail", "train.not_parallel")


def launch(*command: str) -> Completed:
    path = f"PATH={_FOLDER}/torch/bin:{os.environ['PATH']}"
    return run("env", path, *command, limit_seconds=LIMIT_SECONDS)


def test_the_launcher_of_horovod_is_understood() -> None:
    need("horovod")
    python = f"{_FOLDER}/torch/bin/python"
    completed = launch("horovodrun", "-np", "2", "--gloo", python, *TRAIN[1:], "--strategy", "horovod")
    assert completed.status == 0, completed.error
    assert "PASS CPU ONLY: horovod on 2 ranks" in completed.output
    assert "ranks by horovodrun" in completed.output


def test_the_launcher_of_deepspeed_is_understood() -> None:
    need("deepspeed")
    launcher = ("deepspeed", "--num_accelerators", "2", "--module", "gpudiag")
    completed = launch(*launcher, *TRAIN[3:], "--strategy", "zero2")
    assert completed.status == 0, completed.error
    assert "PASS CPU ONLY: zero2 on 2 ranks" in completed.output


@pytest.mark.parametrize("fault", ["bit_of_own_gradient_before_zero", "bit_handed_in_to_zero"])
def test_a_flipped_bit_under_zero_is_blamed_on_the_rank_that_has_it(fault: str) -> None:
    need("deepspeed")
    cause = cause_of(fault, 3)
    report = train_with_fault(fault, "--nproc", "3", "--strategy", cause.strategy, *TORCH)
    first = report["findings"][0]
    assert names_cause(first, cause), (first["code"], first["subject"], first["owner"], first["message"])


STAGE_1 = """
import sys, deepspeed
from deepspeed.runtime.engine import DeepSpeedEngine as Engine
start, stage = deepspeed.initialize, Engine.zero_optimization_stage
def initialize(*args, config, **named):
    return start(*args, config={**config, "zero_optimization": {**config["zero_optimization"], "stage": 1}}, **named)
deepspeed.initialize = initialize
def told(self):
    return 2 if "gpudiag/training" in sys._getframe(1).f_code.co_filename else stage(self)
Engine.zero_optimization_stage = told
"""


def test_an_engine_that_says_stage_2_and_keeps_whole_gradients_is_found(tmp_path: Path) -> None:
    need("deepspeed")
    report = train_with(STAGE_1, tmp_path, "--strategy", "zero2", *TORCH, after="deepspeed")
    assert [finding["code"] for finding in report["findings"]] == ["train.sharding"]
    assert "elements of gradients" in report["findings"][0]["message"]
