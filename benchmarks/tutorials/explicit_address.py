"""Parallel computing with an address: tcp://, world size and rank given, the group closed."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    """Train one epoch of a classifier with Adam."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"]) + 1  # torchrun's own store has that of MASTER_PORT
    address = f"tcp://localhost:{port}"
    dist.init_process_group("gloo", init_method=address, world_size=size, rank=rank)  # MARK address
    torch.manual_seed(3)
    inputs = torch.randn(256, 8)
    data = TensorDataset(inputs, inputs.argmax(1))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    sampler.set_epoch(0)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.Adam(model.parameters())
    for features, labels in DataLoader(data, 16, sampler=sampler):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(f"rank {rank}: loss {loss.item():.4f}")
    dist.destroy_process_group()  # MARK close


if __name__ == "__main__":
    main()
