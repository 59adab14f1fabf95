"""A bare DDP training of a few steps, for torchrun, which `benchmarks/train_start.py` compares with."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH = 8


def main() -> None:
    """Train as many steps as the first argument sets, and let rank 0 print the last loss."""
    steps = int(sys.argv[1])
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    count = steps * BATCH * dist.get_world_size()
    data = TensorDataset(torch.randn(count, 5), torch.randn(count, 5))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    sampler.set_epoch(0)
    loss = torch.zeros(())
    for inputs, targets in DataLoader(data, BATCH, sampler=sampler):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
