# %% wrong
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.zeros(1)
if dist.get_rank() == 0:
    dist.broadcast(value, src=0)
else:
    dist.all_reduce(value)
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.zeros(1)
dist.broadcast(value, src=0)
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.zeros(1)
if dist.get_rank() == 0:
    dist.gather(
        value, [torch.zeros(1) for _ in range(dist.get_world_size())], dst=0
    )
else:
    dist.gather(value, dst=0)
for source in range(dist.get_world_size()):
    dist.broadcast(value, src=source)
dist.destroy_process_group()
