# %% wrong
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

dist.init_process_group("gloo")
writer = SummaryWriter("logs")
dist.destroy_process_group()


# %% right
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

dist.init_process_group("gloo")
writer = SummaryWriter("logs") if dist.get_rank() == 0 else None
dist.destroy_process_group()


# %% near miss
import torch.distributed as dist
import wandb
from torch.utils.tensorboard import SummaryWriter

dist.init_process_group("gloo")
rank = dist.get_rank()
writer = SummaryWriter(f"logs/{rank}")
wandb.init(project="x", group="all-ranks")
dist.destroy_process_group()
