import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

PLAN = {"vision": [0, 1], "language": [1, 2, 3]}


def materialize(plan):
    rank = dist.get_rank()
    meshes = {}
    for name, members in plan.items():
        if rank not in members:
            continue
        meshes[name] = DeviceMesh("cuda", members, mesh_dim_names=(name,))  # expect: collective_on_one_rank
    return meshes


def groups(rank):
    if rank < 2:
        return dist.new_group([0, 1])  # expect: collective_on_one_rank
    return None


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    meshes = materialize(PLAN)
    group = groups(dist.get_rank())
    total = torch.ones(1, device="cuda")
    if group is not None:
        dist.all_reduce(total, group=group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
