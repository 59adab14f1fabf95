# %% wrong
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def train(model, steps):
    dist.init_process_group("cpu:gloo,cuda:nccl")
    for step in range(steps):
        saved = dcp.async_save(
            {"model": model.state_dict()},
            checkpoint_id=f"checkpoints/{step}",
        )
        dist.barrier()
    saved.result()
    dist.destroy_process_group()


# %% right
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def train(model, steps):
    dist.init_process_group("cpu:gloo,cuda:nccl")
    checkpoint_group = dist.new_group(backend="gloo")
    for step in range(steps):
        saved = dcp.async_save(
            {"model": model.state_dict()},
            checkpoint_id=f"checkpoints/{step}",
            process_group=checkpoint_group,
        )
        dist.barrier()
    saved.result()
    dist.destroy_process_group()


# %% near miss
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def train(model, steps):
    dist.init_process_group("cpu:gloo,cuda:nccl")
    for step in range(steps):
        dcp.save(
            {"model": model.state_dict()},
            checkpoint_id=f"checkpoints/{step}",
        )
        dist.barrier()
    dist.destroy_process_group()
