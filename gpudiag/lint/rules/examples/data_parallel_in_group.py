# %% wrong
import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("nccl", init_method="env://")
model = nn.DataParallel(nn.Linear(4, 4)).cuda()
dist.destroy_process_group()


# %% right
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl", init_method="env://")
local_rank = int(os.environ["LOCAL_RANK"])
model = DistributedDataParallel(
    nn.Linear(4, 4).to(local_rank), device_ids=[local_rank]
)
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist
import torch.nn as nn


def main(args):
    model = nn.Linear(4, 4).cuda()
    if args.distributed:
        dist.init_process_group("nccl")
    else:
        model = nn.DataParallel(model)
    return model
