"""Train a model of many layers, and print what it takes of a GPU's memory: STRATEGY DTYPE OPTIMIZER GPUS
MEETING.

A dtype `bfloat16-alone` has no float32 weights; the others are autocast's. Prints the parameters, and the
bytes that are left on GPU 0 after a step, with the gradients. MEETING is a file that the ranks make. They are
forked from this process, which has imported torch for all.
"""

import os
import sys
import traceback
from typing import Any, NoReturn

import torch
import torch._dynamo  # of torch's optimizers
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS = 256, 24


def main(strategy: str, dtype: str, optimizer: str, gpus: str, meeting: str) -> None:
    """Train; status 1 where a rank fails."""
    ranks = [
        _fork(strategy, dtype, optimizer, rank, int(gpus), f"file://{meeting}") for rank in range(int(gpus))
    ]
    if any([os.waitpid(pid, 0)[1] for pid in ranks]):
        sys.exit(1)


def _fork(*way: Any) -> int:
    pid = os.fork()
    if not pid:
        _be_rank(*way)
    return pid


def _be_rank(*way: Any) -> NoReturn:
    try:
        train(*way)
    except BaseException:  # noqa: BLE001 - whatever it is, it must not go on as the parent
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def train(strategy: str, dtype: str, optimizer: str, rank: int, world_size: int, place: str) -> None:
    """Train three steps, and print on rank 0."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=place, rank=rank, world_size=world_size, device_id=device)
    alone = dtype.endswith("-alone")
    kind = getattr(torch, dtype.removesuffix("-alone"))
    model: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(device)
    model = model.to(kind) if alone else model
    parameters = sum(value.numel() for value in model.parameters())
    if strategy == "fsdp2":
        mesh = init_device_mesh("cuda", (world_size,))
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif world_size > 1:
        model = DistributedDataParallel(model, device_ids=[rank])
    kinds = {
        "adam": torch.optim.Adam,
        "sgd": lambda values: torch.optim.SGD(values, lr=1e-3, momentum=0.9),
    }
    stepper = kinds[optimizer](model.parameters())
    inputs = torch.ones(1, WIDTH, device=device, dtype=kind if alone else torch.float32)
    for _ in range(3):
        stepper.zero_grad()
        with torch.autocast("cuda", kind, enabled=not alone and kind is not torch.float32):
            loss = model(inputs).float().square().mean()
        loss.backward()
        stepper.step()
    del loss
    torch.cuda.synchronize()
    if rank == 0:
        print(parameters, torch.cuda.memory_allocated(device), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
