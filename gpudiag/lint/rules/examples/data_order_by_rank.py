# %% wrong
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, random_split


def loader_of(dataset, seed):
    dist.init_process_group("gloo")
    torch.manual_seed(seed + dist.get_rank())
    train, _ = random_split(dataset, [0.9, 0.1])
    sampler = DistributedSampler(train)
    return DataLoader(train, sampler=sampler), sampler

# %% right
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, random_split


def loader_of(dataset, seed):
    dist.init_process_group("gloo")
    torch.manual_seed(seed + dist.get_rank())
    same = torch.Generator().manual_seed(seed)
    train, _ = random_split(dataset, [0.9, 0.1], generator=same)
    sampler = DistributedSampler(train)
    return DataLoader(train, sampler=sampler), sampler

# %% near miss
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, random_split


def loader_of(dataset, seed):
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    train, _ = random_split(dataset, [0.9, 0.1])
    torch.manual_seed(seed + dist.get_rank())
    sampler = DistributedSampler(train)
    return DataLoader(train, sampler=sampler), sampler
