"""Variables of the environment that stay text, under torchrun with an address of its own."""

import os

import torch
import torch.distributed as dist

RANK = os.environ["RANK"]  # expect: local_rank_string
SIZE = int(os.getenv("WORLD_SIZE", "1"))
dist.init_process_group("gloo", init_method="tcp://10.1.1.20:23456", rank=int(os.environ["RANK"]), world_size=SIZE)  # expect: tcp_under_torchrun
if RANK == 0:
    print("never printed")
dist.destroy_process_group()
