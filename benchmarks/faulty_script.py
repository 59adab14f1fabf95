"""A user's training script that goes wrong on one rank, in one of the ways that real ones do.

python faulty_script.py FAULT RANK, started once for each rank by `gpudiag train --script`.
"""

import fcntl
import os
import sys
import tempfile
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

STEPS = 6
WHEN = 3  # the step in which it goes wrong


def end_early() -> None:
    """Take no further step, and come to the script's end."""
    raise StopIteration


def spin() -> None:
    """Wait for something that never comes, without sleeping."""
    ready: list[bool] = []
    while not ready:
        pass


def read() -> None:
    """Read a pipe that nobody writes."""
    reading, _writing = os.pipe()
    os.read(reading, 1)


def lock() -> None:
    """Take a lock that is held already."""
    held = threading.Lock()
    held.acquire()
    held.acquire()


def other_collective() -> None:
    """Broadcast where the others reduce."""
    dist.broadcast(torch.ones(1000), 0)


def other_shape() -> None:
    """Reduce a longer tensor than the others."""
    dist.all_reduce(torch.ones(2000))


def fail_import() -> None:
    """Import what is not installed on this rank's machine."""
    import no_such_library_of_this_host  # type: ignore[import-not-found] # noqa: F401


def fill_shared_memory() -> None:
    """Load batches by a worker, through a /dev/shm that is full."""
    data = torch.utils.data.TensorDataset(torch.ones(4, 1 << 20))
    loader = torch.utils.data.DataLoader(data, num_workers=1)
    for batch in loader:
        batch[0].sum()


FAULTS: dict[str, Callable[[], None]] = {
    "early exit": end_early,
    "spin": spin,
    "blocked read": read,
    "lock": lock,
    "other collective": other_collective,
    "other shape": other_shape,
    "import": fail_import,
    "full /dev/shm": fill_shared_memory,
}


def main() -> None:
    """Train a small model, and go wrong as the arguments choose."""
    fault, victim = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if fault == "short batch":
        train_unevenly(rank, victim)
        return
    for step in range(STEPS):
        if rank == victim and step == WHEN:
            try:
                FAULTS[fault]()
            except StopIteration:
                return
        else:
            dist.all_reduce(torch.ones(1000))
    dist.destroy_process_group()


def train_unevenly(rank: int, victim: int) -> None:
    """Train under DDP with fewer batches on one rank."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10))
    for _ in range(STEPS - WHEN * (rank == victim)):
        model(torch.ones(8, 100)).sum().backward()
    with tempfile.TemporaryFile() as summary:  # what comes after training takes a moment
        fcntl.flock(summary, fcntl.LOCK_EX)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
