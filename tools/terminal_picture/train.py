"""A training job in which a loader's worker of rank 3 waits for a lock that it holds already."""

import os
import threading

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

CACHE = threading.Lock()


class Images(Dataset[torch.Tensor]):
    """Random numbers in place of pictures."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        with CACHE:
            return self.decode(index)

    def decode(self, index: int) -> torch.Tensor:
        """One picture; picture 200 of rank 3 never comes."""
        if index == 200 and os.environ["RANK"] == "3":
            CACHE.acquire()
        return torch.full((8,), float(index))


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    for step, batch in enumerate(DataLoader(Images(), batch_size=4, num_workers=2)):
        gradient = batch.sum(0)
        dist.all_reduce(gradient)
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
