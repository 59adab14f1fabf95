# %% wrong
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "start.pt")
model.load_state_dict(torch.load("start.pt", map_location="cpu"))
dist.destroy_process_group()

# %% right
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "start.pt")
dist.barrier()
model.load_state_dict(torch.load("start.pt", map_location="cpu"))
dist.destroy_process_group()

# %% near miss
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "start.pt")
    print(torch.load("start.pt", map_location="cpu").keys())
dist.destroy_process_group()
