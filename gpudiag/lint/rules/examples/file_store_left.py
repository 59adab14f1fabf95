# %% wrong
import torch.distributed as dist


def run(rank):
    dist.init_process_group(
        "gloo", init_method="file:///shared/store", rank=rank, world_size=2
    )
    dist.destroy_process_group()


# %% right
import os

import torch.distributed as dist


def run(rank):
    store = f"file:///shared/store-{os.environ['SLURM_JOB_ID']}"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=2
    )
    dist.destroy_process_group()


# %% near miss
import tempfile

import torch.distributed as dist

PLACE = tempfile.mkdtemp()


def run(rank):
    dist.init_process_group(
        "gloo", init_method=f"file://{PLACE}/store", rank=rank, world_size=2
    )
    dist.destroy_process_group()
