"""The memory that `gpudiag train --advise` counts is what a run takes of GPUs, as the stand-in counts it."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.training.advise import Model, bytes_per_gpu
from tests.cuda_stand_in.machine import ROOT, open_machine
from tests.stand_in.running import LIMIT_SECONDS

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("strategy", "dtype", "optimizer", "gpus"),
    [
        ("ddp", "float32", "adam", 1),
        ("ddp", "float32", "sgd", 2),
        ("ddp", "bfloat16", "adam", 2),
        ("ddp", "float16", "adam", 2),
        ("ddp", "bfloat16-alone", "adam", 2),
        ("fsdp2", "bfloat16", "adam", 2),
        ("fsdp2", "bfloat16-alone", "sgd", 4),
        ("fsdp2", "float32", "adam", 4),
    ],
)
def test_a_run_takes_what_the_advice_counts(
    extension: Path, tmp_path: Path, strategy: str, dtype: str, optimizer: str, gpus: int
) -> None:
    program = (sys.executable, "-m", "tests.stand_in.memory_of_training", strategy, dtype, optimizer)
    with open_machine("h100x8") as environment:
        ranks = [
            subprocess.Popen(
                [*program, str(rank), str(gpus), str(tmp_path)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for rank in range(gpus)
        ]
        ended = [rank.communicate(timeout=LIMIT_SECONDS) for rank in ranks]
    parameters, taken = (int(word) for word in ended[0][0].split() or pytest.fail(ended[0][1]))
    alone = dtype.endswith("-alone")
    model = Model(parameters, dtype.removesuffix("-alone"), optimizer, master_weights=not alone)
    assert bytes_per_gpu(model, gpus)[strategy] == pytest.approx(taken, rel=0.1)
