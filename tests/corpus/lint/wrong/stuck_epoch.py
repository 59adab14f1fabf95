"""set_epoch with a number that never moves, and a shuffle beside a batch sampler."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(64, 4))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    other = DataLoader(data, shuffle=True, sampler=sampler)  # expect: shuffle_with_sampler
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = 0
    for epoch in range(5):
        sampler.set_epoch(start)  # expect: set_epoch_missing
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        if dist.get_rank() == 0 and epoch == 3:
            break  # expect: loop_by_rank
    dist.destroy_process_group()
    return other


if __name__ == "__main__":
    main()
