# %% wrong
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

stop = False


def handle(number, frame):
    global stop
    stop = True


def train(batches):
    signal.signal(signal.SIGTERM, handle)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for batch in batches:
        model(batch).sum().backward()
        if stop:
            break
    dist.destroy_process_group()


# %% right
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

stop = False


def handle(number, frame):
    global stop
    stop = True


def train(batches):
    signal.signal(signal.SIGTERM, handle)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for batch in batches:
        model(batch).sum().backward()
        wanted = torch.tensor(float(stop))
        dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
        if wanted.item() > 0:
            break
    dist.destroy_process_group()


# %% near miss
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

stop = False


def handle(number, frame):
    global stop
    stop = True


def serve(requests):
    signal.signal(signal.SIGTERM, handle)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for request in requests:
        print(model.module(request))
        if stop:
            break
    dist.destroy_process_group()
