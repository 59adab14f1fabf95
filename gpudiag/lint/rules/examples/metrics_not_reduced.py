# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
data = TensorDataset(torch.randn(64, 4), torch.randint(4, (64,)))
loader = DataLoader(
    data, 8, sampler=DistributedSampler(data, shuffle=False)
)
right = 0
with torch.no_grad():
    for inputs, labels in loader:
        right += (model(inputs).argmax(1) == labels).sum()
print(right / len(data))
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
data = TensorDataset(torch.randn(64, 4), torch.randint(4, (64,)))
loader = DataLoader(
    data, 8, sampler=DistributedSampler(data, shuffle=False)
)
right = torch.zeros(1)
with torch.no_grad():
    for inputs, labels in loader:
        right += (model(inputs).argmax(1) == labels).sum()
dist.all_reduce(right)
print(right / len(data))
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
data = TensorDataset(torch.randn(64, 4), torch.randint(4, (64,)))
loader = DataLoader(data, 8)
right = 0
with torch.no_grad():
    for inputs, labels in loader:
        right += (model(inputs).argmax(1) == labels).sum()
print(right / len(data))
dist.destroy_process_group()
