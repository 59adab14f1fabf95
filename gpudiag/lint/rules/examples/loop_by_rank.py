# %% wrong
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
steps = 100 if rank == 0 else 50
for _ in range(steps):
    dist.all_reduce(torch.zeros(1))
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
steps = 100
for _ in range(steps):
    dist.all_reduce(torch.zeros(1))
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(3 if rank == 0 else 2):
    print("no collective in here")
for _ in range(10):
    stop = torch.zeros(1)
    dist.all_reduce(stop)
    if stop.item():
        break
dist.destroy_process_group()
