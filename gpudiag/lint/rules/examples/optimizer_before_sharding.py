# %% wrong
import torch
from torch.distributed.fsdp import fully_shard


def build(mesh):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fully_shard(model, mesh=mesh)
    return model, optimizer


# %% right
import torch
from torch.distributed.fsdp import fully_shard


def build(mesh):
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer


# %% near miss
import torch
from torch.nn.parallel import DistributedDataParallel


def build():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model = DistributedDataParallel(model)
    return model, optimizer
