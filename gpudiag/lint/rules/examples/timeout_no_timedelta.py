# %% wrong
import torch.distributed as dist

dist.init_process_group("gloo", timeout=3600)
dist.destroy_process_group()

# %% right
import datetime

import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3600))
dist.destroy_process_group()

# %% near miss
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(0, 3600))
dist.destroy_process_group()
