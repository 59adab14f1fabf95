"""A quick start to DDP, with what such texts get wrong."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(5, 10)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.fc2(self.relu(self.fc1(x)))


def main():
    dist.init_process_group(backend="nccl", init_method="env://")  # expect: destroy_missing
    world_size = dist.get_world_size()
    rank = dist.get_rank()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)  # expect: used_too_early, model_not_wrapped
    model = Net().cuda()
    criterion = nn.MSELoss()
    dist.broadcast(model.state_dict(), src=0)  # expect: collective_of_no_tensor
    for r in range(world_size):  # expect: ranks_in_a_loop
        if rank == r:
            for _ in range(100):
                inputs = torch.randn(16, 5).cuda()
                targets = torch.randn(16, 5).cuda()
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
            dist.all_reduce(model.state_dict())  # expect: collective_of_no_tensor


if __name__ == "__main__":
    main()
