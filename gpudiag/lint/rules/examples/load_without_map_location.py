# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(
    torch.nn.Linear(4, 4).to(dist.get_rank() % 8)
)
model.load_state_dict(torch.load("weights.pt"))
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(
    torch.nn.Linear(4, 4).to(dist.get_rank() % 8)
)
model.load_state_dict(torch.load("weights.pt", map_location="cpu"))
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
model.load_state_dict(torch.load("weights.pt"))
dist.destroy_process_group()
