"""A small DistributedDataParallel job of two ranks on one GPU; KIND chooses what rank 1 does at step 20.

Each rank appends a line to RUN_DIR/steps.RANK for each step, so that what starts it knows how far it is.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HEALTHY, FIFO, SKIP, LOOP, SPIN = "healthy", "fifo", "skip", "loop", "spin"
KINDS = (HEALTHY, FIFO, SKIP, LOOP, SPIN)
FAULTY_STEP = 20
_FEATURES, _HIDDEN, _CLASSES, _BATCH = 1024, 2048, 10, 64
_STEP_SECONDS = 0.05
_CYCLES_WITHOUT_END = 10**13  # of the GPU's clock: more than an hour

KIND = os.environ["KIND"]
FOLDER = Path(os.environ["RUN_DIR"])


def load_batch(step: int, is_faulty: bool) -> torch.Tensor:
    """The step's input; a pipe that nobody writes to holds up the faulty one."""
    if is_faulty and KIND == FIFO:
        (FOLDER / "pipe").read_bytes()
    return torch.randn(_BATCH, _FEATURES, device="cuda")


def tokenize() -> None:
    """Count without end."""
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def average(loss: torch.Tensor, is_faulty: bool) -> torch.Tensor:
    """The mean loss of all ranks; the faulty one leaves the all_reduce out."""
    value = loss.detach().clone()
    if not (is_faulty and KIND == SKIP):
        dist.all_reduce(value)
    return value / dist.get_world_size()


def main() -> None:
    """Train until it is killed."""
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    layers = torch.nn.Sequential(
        torch.nn.Linear(_FEATURES, _HIDDEN), torch.nn.ReLU(), torch.nn.Linear(_HIDDEN, _CLASSES)
    )
    model = DistributedDataParallel(layers.cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = (FOLDER / f"steps.{rank}").open("a", buffering=1)
    step = 0
    while True:
        is_faulty = rank == 1 and step == FAULTY_STEP
        batch = load_batch(step, is_faulty)
        if is_faulty and KIND == LOOP:
            tokenize()
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if is_faulty and KIND == SPIN:
            torch.cuda._sleep(_CYCLES_WITHOUT_END)  # type: ignore[no-untyped-call]
        loss.backward()
        optimizer.step()
        steps.write(f"{step} {average(loss, is_faulty).item():.4f}\n")
        step += 1
        time.sleep(_STEP_SECONDS)


if __name__ == "__main__":
    main()
