# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def gathered(features):
    size = dist.get_world_size()
    parts = [torch.zeros_like(features) for _ in range(size)]
    dist.all_gather(parts, features)
    return torch.cat(parts)


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    features = gathered(model(torch.randn(8, 4)))
    loss = (features @ features.T).logsumexp(dim=1).mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()

# %% right
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def gathered(features):
    size = dist.get_world_size()
    parts = [torch.zeros_like(features) for _ in range(size)]
    dist.all_gather(parts, features)
    parts[dist.get_rank()] = features
    return torch.cat(parts)


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    features = gathered(model(torch.randn(8, 4)))
    loss = (features @ features.T).logsumexp(dim=1).mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()

# %% near miss
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def gathered(features):
    size = dist.get_world_size()
    parts = [torch.zeros_like(features) for _ in range(size)]
    dist.all_gather(parts, features)
    return torch.cat(parts)


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    features = model(torch.randn(8, 4))
    loss = (features @ features.T).logsumexp(dim=1).mean()
    loss.backward()
    optimizer.step()
    print(gathered(features.detach()).mean())
dist.destroy_process_group()
