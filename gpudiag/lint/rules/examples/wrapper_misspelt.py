# %% wrong
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParalled as DDP

dist.init_process_group("nccl")


# %% right
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")


# %% near miss
import torch.distributed as dist
from mylib.parallel import DistributedDataParallelWrapper as DDP

dist.init_process_group("nccl")
dist.destroy_process_group()
