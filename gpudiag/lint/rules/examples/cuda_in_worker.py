# %% wrong
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.tensor(index**2).cuda()


dist.init_process_group("nccl")
loader = DataLoader(Squares(), batch_size=10, num_workers=2)
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.tensor(index**2)


dist.init_process_group("nccl")
loader = DataLoader(Squares(), batch_size=10, num_workers=2)
for batch in loader:
    print(batch.cuda().sum())
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.tensor(index**2).cuda()


dist.init_process_group("nccl")
loader = DataLoader(Squares(), batch_size=10, num_workers=0)
dist.destroy_process_group()
