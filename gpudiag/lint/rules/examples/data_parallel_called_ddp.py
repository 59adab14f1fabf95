# %% wrong
import torch.nn as nn

model = nn.Linear(4, 4)
ddp_model = nn.DataParallel(model)


# %% right
from torch import nn
from torch.nn.parallel import DistributedDataParallel

model = nn.Linear(4, 4)
ddp_model = DistributedDataParallel(model)


# %% near miss
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def wrap(model, distributed):
    ddp_model = DDP(model) if distributed else nn.DataParallel(model)
    return ddp_model
