# %% wrong
import deepspeed
import torch.distributed as dist


def train(model, batches, config):
    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    for batch in batches:
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
    if dist.get_rank() == 0:
        engine.save_checkpoint("checkpoints")


# %% right
import deepspeed
import torch.distributed as dist


def train(model, batches, config):
    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    for batch in batches:
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint("checkpoints")
    if dist.get_rank() == 0:
        print("saved")


# %% near miss
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for batch in batches:
        model(batch).sum().backward()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), "weights.pt")
