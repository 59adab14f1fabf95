# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    loss = model(torch.randn(8, 4)).sum()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).sum()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    for parameter in model.parameters():
        parameter.grad = None
    loss = model(torch.randn(8, 4)).sum()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
