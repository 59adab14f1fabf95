# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = torch.nn.Linear(4, 4).cuda()
model = DistributedDataParallel(model)
dist.destroy_process_group()


# %% right
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(4, 4).cuda()
model = DistributedDataParallel(model)
dist.destroy_process_group()


# %% near miss
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(4, 4).to(device)
model = DistributedDataParallel(model, device_ids=[device.index])
dist.destroy_process_group()
