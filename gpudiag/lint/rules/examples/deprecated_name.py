# %% wrong
import torch.distributed as dist


def total(tensor):
    dist.all_reduce(tensor, op=dist.reduce_op.SUM)


# %% right
import torch.distributed as dist


def total(tensor):
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)


# %% near miss
import mylib.distributed as dist


def total(tensor):
    dist.all_reduce(tensor, op=dist.reduce_op.SUM)
