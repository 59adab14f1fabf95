# %% wrong
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
model(torch.randn(8, 4)).sum().backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
model(torch.randn(8, 4)).sum().backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
    parameter.grad /= dist.get_world_size()
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
world = dist.get_world_size()
model = torch.nn.Linear(4, 4)
loss = model(torch.randn(8, 4)).sum() / world
loss.backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
correct = torch.zeros(1)
dist.all_reduce(correct)
dist.destroy_process_group()
