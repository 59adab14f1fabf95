"""One machine with several cards: --local_rank, a DistributedSampler, a loader with workers, a test set."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    """Train two epochs, and count what is right in the test set."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    parser.parse_args()
    dist.init_process_group("gloo")
    device = torch.device("cpu")
    torch.manual_seed(1)
    inputs = torch.randn(512, 20)
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] | None = DistributedSampler(data)  # MARK sampler
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        if sampler is not None:
            sampler.set_epoch(epoch)  # MARK epoch
        for features, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features.to(device)), labels.to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        right = (model(inputs).argmax(1) == (inputs[:, 0] > 0)).float().mean()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}, right {right:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
