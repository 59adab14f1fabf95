# %% wrong
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
dist.broadcast(model.state_dict(), src=0)
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
for tensor in model.state_dict().values():
    dist.broadcast(tensor, src=0)
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
states = [model.state_dict()]
dist.broadcast_object_list(states, src=0)
dist.destroy_process_group()
