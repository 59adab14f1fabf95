# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
torch.save(model.module.state_dict(), "checkpoint.pt")
dist.destroy_process_group()


# %% right
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "checkpoint.pt")
dist.destroy_process_group()


# %% near miss
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 4))
torch.save(torch.get_rng_state(), f"random_state_{rank}.pt")
if rank != 0:
    dist.destroy_process_group()
    raise SystemExit(0)
torch.save(model.module.state_dict(), "checkpoint.pt")
dist.destroy_process_group()
