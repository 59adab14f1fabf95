# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", rank=0, world_size=1)
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
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
dist.destroy_process_group()
