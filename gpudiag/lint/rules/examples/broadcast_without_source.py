# %% wrong
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.broadcast(torch.zeros(1))
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.broadcast(torch.zeros(1), src=0)
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.new_group([0, 1])
dist.broadcast(torch.zeros(1), group=group, group_src=0)
dist.all_reduce(torch.zeros(1))
dist.destroy_process_group()
