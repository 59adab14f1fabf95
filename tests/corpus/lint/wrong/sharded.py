"""FSDP in both generations."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard


def second():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).cuda()
    optim = torch.optim.Adam(model.parameters(), lr=1e-3)  # expect: optimizer_before_sharding
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, optim


def first():
    model = FSDP(torch.nn.Linear(4, 4).cuda())  # expect: deprecated_name
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(2, 4).cuda()).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: clip_before_sync
        optimizer.step()
    if dist.get_rank() == 0:
        state = model.state_dict()  # expect: sharded_save_on_one_rank
        torch.save(state, "model.pt")


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
first()
second()
dist.destroy_process_group()
