"""A small healthy training job, `torchrun --nproc-per-node 4 healthy.py WHAT FOLDER`, with a digest.

WHAT is train, loader, evaluation, checkpoint, compile, ddp, uneven_speed or python.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WHAT, FOLDER = sys.argv[1], Path(sys.argv[2])
SECONDS = float(os.environ.get("SECONDS_TO_RUN", "60"))
STEPS = int(os.environ.get("STEPS_TO_RUN", "0"))  # instead, so that two runs end with the same parameters
torch.set_num_threads(1)


def evaluate(model: torch.nn.Module, batches: int) -> float:
    """The mean output over some batches, on all ranks."""
    with torch.no_grad():
        outputs = [model(torch.full((64, 256), float(number % 7))).mean() for number in range(batches)]
    total = torch.stack(outputs).sum()
    dist.all_reduce(total)
    return float(total)


def save(model: torch.nn.Module, step: int) -> None:
    """Save on rank 0, with the others at a barrier."""
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "padding": torch.zeros(4 << 20)}
        torch.save(state, FOLDER / "state.pt")
        with open(FOLDER / "state.pt", "rb+") as file:
            os.fsync(file.fileno())
    dist.barrier()


def prepare(batch: torch.Tensor) -> torch.Tensor:
    """Work of Python, some milliseconds."""
    total = 0
    for number in range(60000):
        total += number % 7
    return batch + total * 1e-12


def main() -> None:
    """Train for some time, or for some steps."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16)
    )
    trained: torch.nn.Module = DistributedDataParallel(model)
    if WHAT == "compile":
        trained = torch.compile(DistributedDataParallel(model))  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(4096, 256))
    loader = DataLoader(data, 32, sampler=DistributedSampler(data), num_workers=2 if WHAT == "loader" else 0)
    (FOLDER / f"begun.{rank}").touch()
    began, step = time.monotonic(), 0
    while True:
        for (rows,) in loader:
            batch = prepare(rows) if WHAT == "python" else rows
            if WHAT == "uneven_speed" and rank == 1:
                time.sleep(0.3)
            loss = trained(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if WHAT == "evaluation" and step % 5 == 0:
                evaluate(model, 400)
            if WHAT == "checkpoint" and step % 10 == 0:
                save(model, step)
            is_over = step >= STEPS if STEPS else time.monotonic() - began > SECONDS
            ends = torch.tensor([float(is_over)])
            dist.broadcast(ends, 0)
            if ends.item():
                break
        else:
            continue
        break
    bits = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    if rank == 0:
        print("digest", step, hashlib.sha256(bits).hexdigest()[:16], flush=True)
        (FOLDER / "digest").write_text(hashlib.sha256(bits).hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
