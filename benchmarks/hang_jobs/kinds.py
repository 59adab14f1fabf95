"""A small training job that hangs in the way that is asked for; it knows nothing of gpudiag.

`torchrun --nproc-per-node 4 kinds.py KIND FOLDER`: rank 2 goes wrong in step 5, and leaves FOLDER/ready
before it does. The line in which it then stays ends in the comment `# KIND`.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
GUILTY = int(os.environ.get("GUILTY", "2"))
STEPS = 40
# With gloo a tensor of another size ends the job at once, but for large ones: those are sent in equal pieces.
SIZE = 1 << 22 if KIND == "other_size" else 512
LOCK = threading.Lock()


def is_wrong(step: int) -> bool:
    """Whether it is this rank's time to go wrong."""
    wrong = dist.get_rank() == GUILTY and step == 5
    if wrong:
        (FOLDER / "ready").touch()
    return wrong


class Samples(Dataset[torch.Tensor]):
    """Samples that a worker reads; one of them never comes on the guilty rank."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        if KIND == "loader_deadlock" and index == 40 and int(os.environ["RANK"]) == GUILTY:
            (FOLDER / "ready").touch()
            LOCK.acquire()
            LOCK.acquire()  # loader_deadlock
        return torch.full((8,), float(index))


def load(step: int) -> torch.Tensor:
    """A batch, or one of the ways in which it never comes."""
    if not is_wrong(step):
        return torch.ones(SIZE)
    if KIND == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)  # sigstop
    elif KIND == "fifo":
        os.mkfifo(FOLDER / "batch")
        with open(FOLDER / "batch") as file:  # fifo
            file.read()
    elif KIND == "sleep":
        time.sleep(3600)  # sleep
    elif KIND == "python_loop":
        count_for_ever()
    elif KIND == "lock":
        wait_for_the_lock()
    elif KIND == "d_state":
        os.mkfifo(FOLDER / "batch")
        action = (os.POSIX_SPAWN_OPEN, 0, str(FOLDER / "batch"), os.O_RDONLY, 0)
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=[action])  # d_state
    elif KIND == "frozen_disk":
        (FOLDER / "disk" / "state").write_text("x" * 100000)  # frozen_disk
    elif KIND == "exception":
        raise ValueError("a broken sample")
    elif KIND == "dead":
        os._exit(0)
    return torch.ones(512)


def count_for_ever() -> None:
    """Compute without end."""
    total = 0
    while True:  # python_loop
        total = (total * 31 + 7) % 1000003  # python_loop


def wait_for_the_lock() -> None:
    """Wait for a lock that another thread holds."""

    def hold() -> None:
        with LOCK:
            time.sleep(3600)

    threading.Thread(target=hold, daemon=True, name="holder").start()
    time.sleep(0.5)
    with LOCK:  # lock
        pass


def evaluate() -> float:
    """Compute for long, with torch, as an evaluation does."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    total = 0.0
    with torch.no_grad():
        for number in range(10**8):
            batch = torch.full((64, 64), float(number % 7))  # evaluation
            total += float(model(batch).mean())  # evaluation
    return total


def reduce(tensor: torch.Tensor) -> None:
    """The collective of a step."""
    dist.all_reduce(tensor)  # waits


def train_with_loader() -> None:
    """Steps whose batches come from workers."""
    loader = DataLoader(Samples(), batch_size=4, num_workers=2)
    for batch in loader:
        tensor = batch.sum(0)
        reduce(tensor)
        time.sleep(0.02)


def train() -> None:
    """The steps."""
    for step in range(STEPS):
        if KIND == "exception":
            try:
                batch = load(step)
                reduce(batch)
            except ValueError as error:
                print("skips a step:", error)
            continue
        if KIND in ("skipped", "other_collective", "other_size", "evaluation") and is_wrong(step):
            wrong_collective()
            continue
        batch = load(step)
        if KIND == "dead":
            meet_by_store(step)
            continue
        reduce(batch)
        time.sleep(0.02)


def wrong_collective() -> None:
    """What the guilty rank does instead of the collective of the step."""
    tensor = torch.ones(512)
    if KIND == "other_collective":
        dist.all_gather([torch.zeros(512) for _ in range(dist.get_world_size())], tensor)  # other_collective
    elif KIND == "other_size":
        reduce(torch.ones(1 << 23))
    elif KIND == "evaluation":
        evaluate()
    elif KIND == "skipped":
        dist.barrier()  # skipped


def meet_by_store(step: int) -> None:
    """Meet without a collective, so that no socket reports the death of one rank to the others."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"done/{step}/{dist.get_rank()}", "1")
    for rank in range(dist.get_world_size()):
        store.wait([f"done/{step}/{rank}"])  # dead


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    if KIND == "loader_deadlock":
        train_with_loader()
    else:
        train()
    if KIND == "exit" and dist.get_rank() == GUILTY:
        threading.Thread(target=time.sleep, args=(3600,), name="uploader").start()
        (FOLDER / "ready").touch()
        return
    dist.barrier()  # exit exception
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
