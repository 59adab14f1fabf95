# %% wrong
import torch.distributed as dist
from torchvision import datasets

dist.init_process_group("gloo")
data = datasets.MNIST("data", train=True, download=True)
dist.destroy_process_group()


# %% right
import os

import torch.distributed as dist
from torchvision import datasets

dist.init_process_group("gloo")
local_rank = int(os.environ["LOCAL_RANK"])
if local_rank == 0:
    datasets.MNIST("data", train=True, download=True)
dist.barrier()
data = datasets.MNIST("data", train=True, download=False)
dist.destroy_process_group()


# %% near miss
import torch.distributed as dist
from torchvision import datasets

dist.init_process_group("gloo")
data = datasets.MNIST(f"data-{dist.get_rank()}", train=True, download=True)
dist.destroy_process_group()
