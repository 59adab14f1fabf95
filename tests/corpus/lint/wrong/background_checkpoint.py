import os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard


class Checkpointer:
    def __init__(self, folder):
        self.folder = folder
        self.future = None

    def save(self, step, model):
        self.future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{self.folder}/step-{step}")  # expect: async_save_without_group
        dist.barrier()


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = torch.nn.Linear(512, 512).cuda()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    keeper = Checkpointer("/checkpoints")
    for step in range(1000):
        optimizer.zero_grad()
        model(torch.randn(8, 512, device="cuda")).sum().backward()
        optimizer.step()
        if step % 10 == 0:
            keeper.save(step, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
