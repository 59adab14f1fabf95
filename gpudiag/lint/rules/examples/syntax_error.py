# %% wrong
import torch.distributed as dist

dist.init_process_group("gloo"


# %% right
import torch.distributed as dist

dist.init_process_group("gloo")
dist.destroy_process_group()


# %% near miss
import torch.distributed as dist

dist.init_process_group(
    "gloo",
)
dist.destroy_process_group()
