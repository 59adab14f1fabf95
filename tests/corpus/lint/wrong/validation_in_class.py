import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, rank, local):
        self.rank = rank
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(4)).cuda()
        net(torch.randn(2, 3, 16, 16, device="cuda"))
        self.model = DistributedDataParallel(net, device_ids=[local])  # expect: batch_norm_apart
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run_validation(self):
        self.model.eval()
        total = 0.0
        with torch.no_grad():
            for _ in range(10):
                total += self.model(torch.randn(4, 3, 16, 16, device="cuda")).mean().item()  # expect: forward_on_one_rank
        return total

    def validate(self):
        if self.rank != 0:
            dist.barrier()
            return None
        try:
            return self.run_validation()
        finally:
            dist.barrier()

    def train(self):
        for epoch in range(5):
            self.model.train()
            for _ in range(10):
                self.optimizer.zero_grad()
                self.model(torch.randn(4, 3, 16, 16, device="cuda")).sum().backward()
                self.optimizer.step()
            self.validate()


if __name__ == "__main__":
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    Trainer(dist.get_rank(), local).train()
    dist.destroy_process_group()
