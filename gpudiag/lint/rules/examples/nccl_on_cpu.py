# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist

dist.init_process_group("cpu:gloo,cuda:nccl")
count = torch.tensor(1.0)
dist.all_reduce(count)
dist.destroy_process_group()
