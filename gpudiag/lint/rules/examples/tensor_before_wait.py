# %% wrong
import torch
import torch.distributed as dist


def average(gradient: torch.Tensor) -> None:
    work = dist.all_reduce(gradient, async_op=True)
    gradient.div_(dist.get_world_size())
    work.wait()


# %% right
import torch
import torch.distributed as dist


def average(gradient: torch.Tensor) -> None:
    work = dist.all_reduce(gradient, async_op=True)
    work.wait()
    gradient.div_(dist.get_world_size())


# %% near miss
import torch
import torch.distributed as dist


def pass_on(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    work = dist.isend(tensor, dst=1)
    total = tensor + 1
    other.zero_()
    work.wait()
    return total
