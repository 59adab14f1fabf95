# %% wrong
import torch
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total += loss
    return total


# %% right
import torch
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total


# %% near miss
import torch
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    total = 0
    for batch in batches:
        part = model(batch).sum()
        total += part
    total.backward()
