# %% wrong
import torch
import torch.distributed as dist


def run(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = 4
    for rank in range(world_size):
        run(rank, world_size)


# %% right
import os

import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = (
        "localhost",
        "29500",
    )
    world_size = 4
    mp.spawn(run, args=(world_size,), nprocs=world_size)


# %% near miss
import os

import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    for turn in range(world_size):
        if rank == turn:
            print("rank", rank)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = (
        "localhost",
        "29500",
    )
    world_size = 4
    processes = []
    for rank in range(world_size):
        process = mp.Process(target=run, args=(rank, world_size))
        process.start()
        processes.append(process)
