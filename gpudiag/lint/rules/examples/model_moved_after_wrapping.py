# %% wrong
import torch
from torch.nn.parallel import DistributedDataParallel


def build(device):
    model = torch.nn.Linear(4, 4)
    model = DistributedDataParallel(model)
    model = model.to(device)
    return model


# %% right
import torch
from torch.nn.parallel import DistributedDataParallel


def build(device):
    model = torch.nn.Linear(4, 4)
    model = model.to(device)
    model = DistributedDataParallel(model)
    return model


# %% near miss
import torch


def build(device):
    model = torch.nn.Linear(4, 4)
    model = torch.nn.DataParallel(model)
    model = model.to(device)
    return model
