"""The quick start to DDP: two linear layers, MSE, Adam, one process for each of several machines."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """5 to 10 to 5, with a ReLU between."""

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        self.first, self.second = nn.Linear(5, 10), nn.Linear(10, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs."""
        outputs: torch.Tensor = self.second(torch.relu(self.first(inputs)))
        return outputs


def main() -> None:
    """Train some steps on random numbers, and print the loss."""
    dist.init_process_group("gloo", init_method="env://")
    rank = dist.get_rank()
    model = DistributedDataParallel(Net())  # MARK wrap
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)
    for _ in range(20):
        inputs = torch.randn(16, 5, generator=data)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()  # MARK step
    if rank == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
