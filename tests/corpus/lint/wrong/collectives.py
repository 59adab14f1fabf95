"""Collectives that do not meet."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
if rank == 0:
    dist.init_process_group("gloo", rank=rank, world_size=world_size)  # expect: collective_on_one_rank
value = torch.ones(1)
dist.broadcast(value)  # expect: broadcast_without_source
dist.broadcast(value, src=rank)  # expect: collective_mismatch
if rank != 0:
    dist.all_gather([torch.zeros(1) for _ in range(world_size)], value)  # expect: collective_on_one_rank
print("rank 0" if rank == 0 and dist.barrier() is None else "other")  # expect: collective_on_one_rank
dist.all_reduce(value, async_op=True)  # expect: result_discarded
dist.all_reduce(value, op=dist.reduce_op.SUM)  # expect: deprecated_name
dist.all_reduce(value.item())  # expect: collective_of_no_tensor
dist.destroy_process_group()
