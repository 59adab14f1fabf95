# %% wrong
import os

import torch
import torch.distributed as dist

local_rank = os.environ["LOCAL_RANK"]
dist.init_process_group("nccl")
torch.cuda.set_device(local_rank)
dist.destroy_process_group()


# %% right
import os

import torch
import torch.distributed as dist

local_rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(local_rank)
dist.destroy_process_group()


# %% near miss
import os

import torch

local_rank = os.environ["LOCAL_RANK"]
torch.cuda.set_device(f"cuda:{local_rank}")
if local_rank == "0":
    print("first")
