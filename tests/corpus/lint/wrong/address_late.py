import os

import torch.distributed as dist


def setup(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    os.environ["MASTER_ADDR"] = "node-a"  # expect: used_too_early
    os.environ["MASTER_PORT"] = "29500"
