"""A DDP training on NCCL that is healthy, and looks for a while as if it hung: how, is the first argument.

Each step that a rank has ended is a line of FOLDER/progress.rankN.txt (the second argument). Started by
torchrun, on the stand-in's GPUs.
"""

import os
import sys
import time
from pathlib import Path

os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(sys.argv[2], "inductor")  # nothing is compiled already

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MODES = (
    "kernel30",  # a kernel of 30 s in every fifth step, on all ranks
    "evaluate_all",  # all ranks evaluate for 10 s in every tenth step
    "checkpoint",  # rank 0 saves 100 MB and more in every fifth step, and the others wait in barrier()
    "compile",  # rank 0 compiles for a new shape in every twentieth step, with a C++ compiler as its child
    "replay",  # a step is one launch of two seconds and a wait, as a CUDA graph's replay looks from outside
)
MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK, WIDTH = int(os.environ["RANK"]), 256


def evaluate(model: nn.Module) -> None:
    """Compute for ten seconds."""
    until = time.monotonic() + 10
    with torch.no_grad():
        while time.monotonic() < until:
            model(torch.randn(4096, WIDTH, device="cuda")).mean().item()


def save(model: nn.Module) -> None:
    """Write a checkpoint, with optimizer states made up."""
    states = [torch.randn(5000, 5000) for _ in range(4)]
    torch.save({"model": model.state_dict(), "states": states}, FOLDER / "checkpoint.pt")


def preprocess(values: torch.Tensor) -> torch.Tensor:
    """What is compiled."""
    return torch.relu(values * 2).cumsum(0).sin()


def do_what_looks_odd(model: nn.Module, step: int) -> None:
    """The mode's own part of a step."""
    if MODE == "kernel30" and step % 5 == 4:
        torch.cuda._sleep(6 * 10**10)  # type: ignore[no-untyped-call]
    if MODE == "evaluate_all" and step % 10 == 9:
        evaluate(model)
    if MODE == "checkpoint" and step % 5 == 4:
        if RANK == 0:
            save(model)
        dist.barrier()
    if MODE == "compile" and RANK == 0 and step % 20 == 9:
        torch.compile(preprocess, dynamic=False)(torch.randn(64 + step, WIDTH))
    if MODE == "replay":
        torch.cuda._sleep(4 * 10**9)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def main() -> None:
    """Train until it is ended."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)).to(device)
    model = DistributedDataParallel(layers, device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (FOLDER / f"progress.rank{RANK}.txt").open("a", buffering=1) as progress:
        for step in range(1_000_000):
            do_what_looks_odd(layers, step)
            optimizer.zero_grad()
            loss = model(torch.randn(64, WIDTH, device=device)).square().mean()
            loss.backward()
            optimizer.step()
            value = loss.detach().clone()
            dist.all_reduce(value)
            progress.write(f"{time.time():.2f} {step} {value.item():.4f}\n")


main()
