# %% wrong
import horovod.torch as hvd
import torch

hvd.init()
value = torch.ones(1)
hvd.allreduce(value)
print(value)


# %% right
import horovod.torch as hvd
import torch

hvd.init()
value = torch.ones(1)
value = hvd.allreduce(value)
print(value)


# %% near miss
import horovod.torch as hvd
import torch
import torch.distributed as dist

hvd.init()
value = torch.ones(1)
hvd.allreduce_(value)
work = dist.all_reduce(value, async_op=True)
work.wait()
