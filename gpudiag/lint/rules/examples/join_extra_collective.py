# %% wrong
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    with Join([model]):
        for batch in batches:
            loss = model(batch).sum()
            loss.backward()
            dist.all_reduce(loss.detach())
    dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    total = torch.zeros(1)
    with Join([model]):
        for batch in batches:
            loss = model(batch).sum()
            loss.backward()
            total += loss.detach()
    dist.all_reduce(total)
    dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    with Join([model], throw_on_early_termination=True):
        for batch in batches:
            loss = model(batch).sum()
            loss.backward()
            dist.all_reduce(loss.detach())
    dist.destroy_process_group()
