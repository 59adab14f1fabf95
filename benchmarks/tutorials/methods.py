"""From the list of cards to code: what is there by torch, a model by DDP, averages by all_reduce."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    """Train, and average the loss over the ranks as every step ends."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print(f"{torch.cuda.device_count()} CUDA devices")
    torch.manual_seed(5)
    inputs = torch.randn(320, 6)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for features, targets in DataLoader(data, 16, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)  # MARK average
            mean /= dist.get_world_size()
    if dist.get_rank() == 0:
        print(f"mean loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
