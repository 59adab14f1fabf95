# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
net = torch.nn.Linear(4, 4)
net.register_buffer("mean", torch.zeros(4))
model = DistributedDataParallel(net)
if dist.get_rank() == 0:
    model.eval()
    print(model(torch.randn(2, 4)))
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
net = torch.nn.Linear(4, 4)
net.register_buffer("mean", torch.zeros(4))
model = DistributedDataParallel(net)
if dist.get_rank() == 0:
    model.eval()
    print(model.module(torch.randn(2, 4)))
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
if dist.get_rank() == 0:
    model.eval()
    print(model(torch.randn(2, 4)))
dist.destroy_process_group()
