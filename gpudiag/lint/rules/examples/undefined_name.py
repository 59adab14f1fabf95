# %% wrong
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_rank() % 8)
model = torch.nn.Linear(4, 4).to(dev)
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_rank() % 8)
model = torch.nn.Linear(4, 4).to(device)
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist
from settings import *

dist.init_process_group("nccl")
model = torch.nn.Linear(4, 4).to(dev)
dist.destroy_process_group()
