# %% wrong
import torch
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for batch in batches:
        loss = model.module(batch).sum()
        loss.backward()


# %% right
import torch
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for batch in batches:
        loss = model(batch).sum()
        loss.backward()


# %% near miss
import torch
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for batch in batches:
        loss = model(batch).sum()
        loss.backward()
        with torch.no_grad():
            print(model.module(batch).mean())
    torch.save(model.module.state_dict(), "weights.pt")
