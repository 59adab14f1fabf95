# %% wrong
import subprocess

subprocess.run(
    "python -m torch.distributed.launch --nproc_per_node=4 train.py",
    shell=True,
    check=True,
)


# %% right
import subprocess

subprocess.run(
    "torchrun --nproc_per_node=4 train.py", shell=True, check=True
)


# %% near miss
"""Start it with torchrun (or python -m torch.distributed.run) train.py."""

import torch.distributed as dist

dist.init_process_group("gloo")
dist.destroy_process_group()
