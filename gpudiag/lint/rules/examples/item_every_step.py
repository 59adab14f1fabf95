# %% wrong
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, sampler=torch.utils.data.DistributedSampler(data))
for (inputs,) in loader:
    optimizer.zero_grad()
    loss = model(inputs).sum()
    loss.backward()
    optimizer.step()
    print(loss.item())
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, sampler=torch.utils.data.DistributedSampler(data))
for step, (inputs,) in enumerate(loader):
    optimizer.zero_grad()
    loss = model(inputs).sum()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(loss.item())
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
with torch.no_grad():
    for (inputs,) in DataLoader(data):
        print(model(inputs).sum().item())
dist.destroy_process_group()
