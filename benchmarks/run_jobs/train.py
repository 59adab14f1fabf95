"""A training of some gloo ranks: healthy in ways that look like a stall, or not.

What it does is set by variables, so that one script stands for all jobs of `benchmarks.run_matrix`.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
STEPS = int(os.environ.get("STEPS", "60"))
WORK_SECONDS = float(os.environ.get("WORK", "0.05"))  # of processor time, in each step
KIND, _, FAULTY = os.environ.get("KIND", "none").partition(":")
IS_FAULTY = FAULTY in ("", str(RANK))
AT_STEP = int(os.environ.get("AT_STEP", "40"))


def compute(seconds: float) -> None:
    """Use the processor for that long."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        torch.ones(64, 64) @ torch.ones(64, 64)


def load_batch(step: int) -> torch.Tensor:
    """One batch of random numbers; slow or stuck where that is asked for."""
    if KIND == "slow_loader" and IS_FAULTY:
        time.sleep(2 * max(WORK_SECONDS, 0.1))
    if KIND == "sleeps" and IS_FAULTY and step == AT_STEP:
        time.sleep(3600)
    return torch.randn(32, 64)


def evaluate(model: nn.Module) -> None:
    """An evaluation of some steps' length, on one rank or on all."""
    for _ in range(20):
        compute(WORK_SECONDS)
        model(torch.randn(8, 64))


def save_checkpoint(model: nn.Module) -> None:
    """A checkpoint that takes its time; the others wait for it."""
    if RANK == 0:
        torch.save(model.state_dict(), os.environ.get("CHECKPOINT", os.devnull))
        time.sleep(5.0)
    dist.barrier()


def work_of(step: int) -> float:
    """Processor seconds of this step."""
    seconds = WORK_SECONDS
    if KIND == "uneven":
        seconds *= 0.2 + 2.0 * (step * 7919 % 97) / 97
    if KIND == "first_step" and step == 0:
        seconds += 6.0
    if KIND == "slow" and IS_FAULTY:
        seconds *= 1.3
    return seconds


@record
def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net: nn.Module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    if KIND == "compile":
        net = torch.compile(net)  # type: ignore[assignment]
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began = time.monotonic()
    for step in range(STEPS):
        inputs = load_batch(step)
        compute(work_of(step))
        if step == AT_STEP and IS_FAULTY:
            fail()
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        if KIND == "other_call" and IS_FAULTY and step == AT_STEP:
            dist.recv(torch.zeros(1), src=0 if RANK else 1)  # which nobody sends
        dist.all_reduce(torch.zeros(1))
        if step % 20 == 19 and KIND in ("evaluates_alone", "evaluates"):
            if RANK == 0 or KIND == "evaluates":
                evaluate(model.module)
            dist.barrier()
        if step % 25 == 24 and KIND == "checkpoints":
            save_checkpoint(model)
    if RANK == 0:
        print(f"loss {loss.item():.6f}", flush=True)
        print(f"step {(time.monotonic() - began) / STEPS:.4f} s", file=sys.stderr, flush=True)
    dist.destroy_process_group()


def fail() -> None:
    """End in the way that is asked for."""
    if KIND == "raises":
        raise ValueError("this batch has no labels")
    if KIND == "exits":
        sys.exit(3)
    if KIND == "killed":
        os.kill(os.getpid(), 9)


if __name__ == "__main__":
    main()
