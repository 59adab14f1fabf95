"""Ranks started by mp.spawn, wrongly."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def worker(rank, world_size, epochs):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model = model.cuda(rank)  # expect: model_moved_after_wrapping
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 100 if rank == 0 else 90
    for _ in range(steps):  # expect: loop_by_rank
        optimizer.zero_grad()
        model(torch.randn(8, 4, device=rank)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    mp.spawn(worker, args=(world_size,), nprocs=world_size)  # expect: spawn_mistake, spawn_mistake
