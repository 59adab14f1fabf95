"""`gpudiag train --script` proves what a script trains: the usual mistakes are named, and what was seen is
said.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.ranks.train_command import train

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(120)]

SCRIPT = """import sys
from contextlib import nullcontext
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
mistake = sys.argv[1]
dist.init_process_group('gloo')
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
if mistake == 'no sampler':
    sampler, loader = None, DataLoader(data, batch_size=8, shuffle=True)
else:
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
bare = torch.nn.Linear(8, 1)
by_hand = mistake in ('no ddp', 'gradients', 'parameters')
model = bare if by_hand else DistributedDataParallel(bare)
called = model.module if mistake == 'module' else model
if mistake == 'loaded' and dist.get_rank() == 0:
    bare.load_state_dict({'weight': torch.ones(1, 8), 'bias': torch.zeros(1)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.02 if mistake == 'rate' and dist.get_rank() else 0.01)
if mistake == 'no sampler':
    torch.manual_seed(dist.get_rank())
for epoch in range(2):
    if sampler is not None and mistake != 'no set_epoch':
        sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        with model.no_sync() if mistake == 'no sync' else nullcontext():
            loss = (called(inputs) - targets).square().mean()
        if mistake == 'not finite' and dist.get_rank() == 1 and epoch:
            loss = loss * float('nan')
        loss.backward()
        if mistake == 'gradients':
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        if mistake == 'parameters':
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
dist.destroy_process_group()
"""
NAMES = {"gradients_crossed", "parameters_alike", "losses_finite", "own_samples", "order_changes"}


def run_with(folder: Path, mistake: str, text: str = SCRIPT) -> tuple[int, Any]:
    script = folder / "script.py"
    script.write_text(text)
    completed = train("--nproc", "2", "--script", str(script), "--json", "--", mistake)
    assert completed.left_behind == ()
    return completed.status, completed.document()


@pytest.mark.each_run
def test_a_script_that_is_right_passes_and_what_was_seen_is_said(tmp_path: Path) -> None:
    status, report = run_with(tmp_path, "none")
    assert (status, report["outcome"], report["findings"]) == (0, "pass", [])
    assert {one["name"]: one["passed"] for one in report["script"]["verifications"]} == dict.fromkeys(
        NAMES, True
    )


@pytest.mark.parametrize(
    ("mistake", "code", "words"),
    [
        ("no ddp", "train.not_averaged", "no gradient was averaged"),
        ("module", "train.not_averaged", "never called"),
        ("parameters", "train.parameters_summed", "not divided by 2"),
        ("no sampler", "train.same_samples", "the same samples"),
        ("no set_epoch", "train.order_repeats", "2 of 2 epochs"),
        ("not finite", "train.not_finite", "rank 1"),
        ("no sync", "train.not_averaged", "inside no_sync()"),
        ("loaded", "train.initial_parameters", "before the first step"),
        ("rate", "train.ranks_differ", "lr 0.01 on rank 0; lr 0.02 on rank 1"),
    ],
)
def test_a_usual_mistake_of_a_script_is_named(tmp_path: Path, mistake: str, code: str, words: str) -> None:
    status, report = run_with(tmp_path, mistake)
    assert (status, report["findings"][0]["code"]) == (1, code)
    assert words in report["findings"][0]["message"]


def test_gradients_that_are_summed_by_hand_are_a_warning(tmp_path: Path) -> None:
    status, report = run_with(tmp_path, "gradients")
    assert (status, [finding["code"] for finding in report["findings"]]) == (
        0,
        ["train.gradients_left_summed"],
    )


def test_a_group_that_no_gradient_crossed_is_a_warning(tmp_path: Path) -> None:
    text = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
    status, report = run_with(tmp_path, "none", text)
    assert (status, [finding["code"] for finding in report["findings"]]) == (0, ["train.no_gradient_crossed"])
    passed = {one["name"]: one["passed"] for one in report["script"]["verifications"]}
    assert passed == {**dict.fromkeys(NAMES), "gradients_crossed": False}
