"""A small DDP training on NCCL whose rank 1 does something wrong at step 20: what, is the first argument.

Each step that a rank has ended is a line of FOLDER/progress.rankN.txt (the second argument). Each rank takes
the GPU of its local rank, or GPU 0 where --one-gpu is given. Started by torchrun; `python -m
tests.cuda_stand_in` gives it GPUs.
"""

import argparse
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

MODES = (
    "healthy",
    "spin",  # a kernel that never ends
    "skip",  # leaves out an all-reduce
    "size",  # an all-reduce of another size
    "other",  # a broadcast where the others reduce
    "order",  # two groups, the other way round
    "fifo",  # reads a FIFO that nobody writes
    "pyloop",  # an endless loop of Python
    "stop",  # SIGSTOP
    "exit",  # leaves without a word
    "slow",  # sleeps 0.25 s in each step; healthy, and slow
    "loader",  # a worker of its data loader reads a FIFO
    "uneven",  # has one batch less, and waits in barrier()
    "evaluate",  # healthy: rank 0 evaluates alone for 40 s, and the others wait in barrier()
    "longkernel",  # healthy: a kernel of 10 s in each step, on all ranks
)
AT = 20
WIDTH = 256
RANK = int(os.environ.get("RANK", "0"))


class Shards(IterableDataset[torch.Tensor]):
    """Batches of random numbers without end."""

    def __init__(self, mode: str, folder: Path) -> None:
        self.mode, self.folder = mode, folder

    def read_shard(self, number: int) -> torch.Tensor:
        """One batch, on the processor."""
        if self.mode == "loader" and RANK == 1 and number == AT:
            (self.folder / "pipe").read_bytes()
        return torch.randn(64, WIDTH)

    def __iter__(self) -> Iterator[torch.Tensor]:
        number = 0
        while True:
            yield self.read_shard(number)
            number += 1


def load_batch(mode: str, folder: Path, step: int) -> torch.Tensor:
    """One batch, made on the GPU."""
    if mode == "fifo" and RANK == 1 and step == AT:
        (folder / "pipe").read_bytes()
    return torch.randn(64, WIDTH, device="cuda")


def tokenize() -> None:
    """An endless loop."""
    number = 0
    while True:
        number = (number * 31 + 7) % 1000003


def launch_kernel(mode: str, step: int) -> None:
    """A kernel that lasts longer than the job."""
    if mode == "spin" and RANK == 1 and step == AT:
        torch.cuda._sleep(10**13)  # type: ignore[no-untyped-call]


def average_metric(mode: str, step: int, loss: torch.Tensor) -> torch.Tensor:
    """The mean loss of all ranks, where the mode does not say otherwise."""
    value = loss.detach().clone()
    if RANK == 1 and step == AT:
        if mode == "skip":
            return value
        if mode == "size":
            value = value.expand(1024 * 1024).contiguous()
        if mode == "other":
            dist.broadcast(value, src=0)
            return value
    dist.all_reduce(value)
    return value


def exchange(groups: list[dist.ProcessGroup]) -> None:
    """An all-reduce in each of two groups; rank 1 takes them the other way round."""
    first, second = groups if RANK != 1 else groups[::-1]
    one, two = torch.ones(1024, device="cuda"), torch.ones(1024, device="cuda")
    dist.all_reduce(one, group=first)
    one.sum().item()
    dist.all_reduce(two, group=second)
    two.sum().item()


def evaluate(model: nn.Module) -> None:
    """Computes for 40 seconds."""
    until = time.monotonic() + 40
    with torch.no_grad():
        while time.monotonic() < until:
            model(torch.randn(4096, WIDTH, device="cuda")).mean().item()


def main() -> None:
    """Trains until the mode, or the step count, ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--one-gpu", action="store_true")
    parser.add_argument("--steps", type=int, default=1_000_000)
    chosen = parser.parse_args()
    mode, folder = chosen.mode, chosen.folder
    if not (folder / "pipe").exists() and RANK == 0:
        os.mkfifo(folder / "pipe")
    device = torch.device("cuda", 0 if chosen.one_gpu else int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)).to(device)
    model = DistributedDataParallel(layers, device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    everybody = list(range(dist.get_world_size()))
    groups = [dist.new_group(everybody) for _ in range(2)] if mode == "order" else []
    batches = None
    if mode in ("loader", "uneven", "evaluate", "longkernel"):
        workers = 2 if mode == "loader" else 0
        batches = iter(DataLoader(Shards(mode, folder), batch_size=None, num_workers=workers))
    with (folder / f"progress.rank{RANK}.txt").open("a", buffering=1) as progress:
        for step in range(chosen.steps):
            if mode == "uneven" and RANK == 1 and step == AT:
                break
            batch = load_batch(mode, folder, step) if batches is None else next(batches).to(device)
            if mode == "stop" and RANK == 1 and step == AT:
                os.kill(os.getpid(), signal.SIGSTOP)
            if mode == "exit" and RANK == 1 and step == AT:
                os._exit(0)
            if mode == "slow" and RANK == 1 and step >= AT:
                time.sleep(0.25)
            if mode == "pyloop" and RANK == 1 and step == AT:
                tokenize()
            if mode == "order" and step >= AT:
                exchange(groups)
            if mode == "evaluate" and step == AT:
                if RANK == 0:
                    evaluate(layers)
                dist.barrier()
            if mode == "longkernel" and step >= AT:
                torch.cuda._sleep(2 * 10**10)  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            launch_kernel(mode, step)
            loss.backward()
            optimizer.step()
            value = average_metric(mode, step, loss)
            progress.write(f"{time.time():.2f} {step} {value.flatten()[0].item():.4f}\n")
            time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()


main()
