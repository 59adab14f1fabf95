# %% wrong
from torch.utils.data import DataLoader, DistributedSampler


def loader(data):
    sampler = DistributedSampler(data)
    return DataLoader(data, batch_size=32, shuffle=True, sampler=sampler)


# %% right
from torch.utils.data import DataLoader, DistributedSampler


def loader(data):
    sampler = DistributedSampler(data)
    return DataLoader(data, batch_size=32, shuffle=False, sampler=sampler)


# %% near miss
from torch.utils.data import DataLoader, DistributedSampler


def loader(data, distributed):
    sampler = DistributedSampler(data) if distributed else None
    return DataLoader(
        data, batch_size=32, shuffle=(sampler is None), sampler=sampler
    )
