# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model = torch.nn.Linear(4, 4)
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist


def build():
    return torch.optim.Adam(model.parameters(), lr=1e-3)


rank = dist.get_rank() if dist.is_initialized() else 0
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = build()
dist.destroy_process_group()
