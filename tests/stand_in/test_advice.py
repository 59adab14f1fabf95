"""The memory that `gpudiag train --advise` counts is what a run takes of GPUs, as the stand-in counts it."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.training.advise import Model, bytes_per_gpu
from tests.cuda_stand_in.machine import ROOT, open_machine
from tests.stand_in.running import LIMIT_SECONDS

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.timeout(300)]

WAYS = (
    ("ddp", "float32", "adam", 1),
    ("ddp", "float32", "sgd", 2),
    ("ddp", "bfloat16", "adam", 2),
    ("ddp", "float16", "adam", 2),
    ("ddp", "bfloat16-alone", "adam", 2),
    ("fsdp2", "bfloat16", "adam", 2),
    ("fsdp2", "bfloat16-alone", "sgd", 4),
    ("fsdp2", "float32", "adam", 4),
)


@pytest.mark.sliced
@pytest.mark.parametrize(("strategy", "dtype", "optimizer", "gpus"), WAYS)
def test_a_run_takes_what_the_advice_counts(
    extension: Path, tmp_path: Path, strategy: str, dtype: str, optimizer: str, gpus: int
) -> None:
    way = (strategy, dtype, optimizer, str(gpus), str(tmp_path / "meeting"))
    with open_machine("h100x8") as environment:
        done = subprocess.run(
            [sys.executable, "-m", "tests.stand_in.memory_of_training", *way],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
            cwd=ROOT,
        )
    assert done.returncode == 0, done.stderr
    parameters, taken = map(int, done.stdout.split())
    alone = dtype.endswith("-alone")
    model = Model(parameters, dtype.removesuffix("-alone"), optimizer, master_weights=not alone)
    assert bytes_per_gpu(model, gpus)[strategy] == pytest.approx(taken, rel=0.1)
