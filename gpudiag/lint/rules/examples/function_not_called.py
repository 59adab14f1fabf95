# %% wrong
import torch.distributed as dist


def is_main_process():
    return dist.get_rank() == 0


dist.init_process_group("gloo")
if is_main_process:
    print("once")
dist.destroy_process_group()


# %% right
import torch.distributed as dist


def is_main_process():
    return dist.get_rank() == 0


dist.init_process_group("gloo")
if is_main_process():
    print("once")
dist.destroy_process_group()


# %% near miss
import torch.distributed as dist
from accelerate import Accelerator

accelerator = Accelerator()
is_main_process = accelerator.is_main_process
if is_main_process and accelerator.is_local_main_process:
    print("once", dist.is_available)
