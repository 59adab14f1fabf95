# %% wrong
import os

import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world_size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = (
        "localhost",
        "29500",
    )
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(0, 2), nprocs=2)


# %% right
import os

import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world_size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = (
        "localhost",
        "29500",
    )
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(2,), nprocs=2)


# %% near miss
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world_size, port=29500, *rest):
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://localhost:{port}",
        rank=rank,
        world_size=world_size,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(2,), nprocs=2)
