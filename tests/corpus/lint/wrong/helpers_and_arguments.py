"""Helpers that build and shard, and a rank from the command line."""

import os, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

def apply(module):
    for child in module.children():
        fully_shard(child)
    fully_shard(module)

def make_opt(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-3)  # expect: optimizer_before_sharding

def main():
    local_rank = int(sys.argv[1])  # expect: local_rank_from_argv
    dist.init_process_group("nccl")
    device = torch.device("cuda:0")
    x = torch.zeros(1).to(device)
    os.environ.update({"CUDA_VISIBLE_DEVICES": "1"})  # expect: cuda_visible_devices_late
    net = torch.nn.Linear(3, 3).to(device)
    opt = make_opt(net)
    apply(net)
    model2 = torch.nn.Linear(3, 3)
    m = DDP(model2, device_ids=[local_rank]).to(device)  # expect: model_moved_after_wrapping
    losses = []
    total = 0
    if dist.get_rank() == 0:
        steps = 100
    else:
        steps = 50
    for i in range(steps):  # expect: loop_by_rank
        opt.zero_grad()
        loss = m(x).sum()
        loss.backward()
        opt.step()
        losses.append(loss)  # expect: loss_keeps_graph
        total = total + loss  # expect: loss_keeps_graph
    if not dist.get_rank():
        return
    dist.barrier()  # expect: collective_on_one_rank
    dist.destroy_process_group()

main()
