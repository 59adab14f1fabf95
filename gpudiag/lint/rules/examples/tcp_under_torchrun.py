# %% wrong
import os

import torch.distributed as dist

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
dist.init_process_group(
    "gloo",
    init_method="tcp://10.0.0.1:23456",
    rank=rank,
    world_size=world_size,
)
dist.destroy_process_group()


# %% right
import torch.distributed as dist

dist.init_process_group("gloo")
dist.destroy_process_group()


# %% near miss
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world_size):
    dist.init_process_group(
        "gloo",
        init_method="tcp://localhost:23456",
        rank=rank,
        world_size=world_size,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(2,), nprocs=2)
