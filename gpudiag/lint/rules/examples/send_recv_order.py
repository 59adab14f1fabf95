# %% wrong
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.zeros(4)
if dist.get_rank() == 0:
    dist.recv(value, src=1)
    dist.send(value, dst=1)
else:
    dist.recv(value, src=0)
    dist.send(value, dst=0)
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.zeros(4)
if dist.get_rank() == 0:
    dist.send(value, dst=1)
    dist.recv(value, src=1)
else:
    dist.recv(value, src=0)
    dist.send(value, dst=0)
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
value = torch.zeros(4)
if rank > 0:
    dist.recv(value, src=rank - 1)
if rank < size - 1:
    dist.send(value, dst=rank + 1)
dist.destroy_process_group()
