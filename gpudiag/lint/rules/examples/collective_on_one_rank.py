# %% wrong
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("saved")
    dist.barrier()
dist.destroy_process_group()


# %% right
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("saved")
dist.barrier()
dist.destroy_process_group()


# %% near miss
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank != 0:
    dist.barrier()
print("rank 0 downloads, the others find it there")
if rank == 0:
    dist.barrier()
dist.destroy_process_group()
