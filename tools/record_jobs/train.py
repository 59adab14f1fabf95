"""A small training job that goes wrong as MODE names, on rank BAD; record.py starts it."""

import logging
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)

MODE = os.environ["MODE"]
BAD = int(os.environ.get("BAD", "1"))
RANK = int(os.environ.get("RANK", "0"))
STEPS = int(os.environ.get("STEPS", "6"))
BAD_STEP = 3


class Rows(Dataset[torch.Tensor]):
    """Rows of numbers; the loader's worker may die while it reads one."""

    def __len__(self) -> int:
        """How many rows there are."""
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        """One row."""
        if MODE == "worker_killed" and RANK == BAD and index > 12:
            os.kill(os.getpid(), signal.SIGKILL)
        if MODE == "bad_row" and RANK == BAD and index > 12:
            raise KeyError("label")
        return torch.ones(16) * index


def save_checkpoint(model: torch.nn.Module, step: int) -> None:
    """Write the parameters; to a full disk where that is the fault."""
    if RANK == 0:
        target = "/dev/full" if MODE == "disk_full" and step == BAD_STEP else os.devnull
        with open(target, "wb") as out:
            torch.save(model.state_dict(), out)


def decode() -> None:
    """What a loader raises for a broken image."""
    raise RuntimeError("could not decode image 17")


def ask_metrics() -> None:
    """What a client raises whose server went away."""
    raise ConnectionResetError(104, "Connection reset by peer")


def go_wrong(step: int) -> None:
    """The fault that is asked for, on its rank and step."""
    if RANK != BAD or step != BAD_STEP:
        return
    if MODE == "exception":
        raise ValueError(f"bad sample in shard {step}: token 51200 is not below 50304")
    if MODE == "out_of_memory":
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of"
            " 79.11 GiB of which 1.02 GiB is free."
        )
    if MODE == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if MODE == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if MODE == "hang":
        time.sleep(1000)
    if MODE == "leave":
        logging.info("rank %d: no more data", RANK)
        sys.exit(0)
    if MODE == "agent_killed":
        os.kill(os.getppid(), signal.SIGKILL)
    if MODE == "agent_stopped":
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
    if MODE == "agent_interrupted":
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    if MODE == "other_collective":
        dist.broadcast(torch.ones(4), 0)
    if MODE == "other_size":
        dist.all_reduce(torch.ones(100))
    if MODE == "swallowed":
        try:
            decode()
        except RuntimeError:
            logging.exception("skipping the batch")
            time.sleep(1000)


def main() -> None:
    """Train for a few steps."""
    if MODE == "before_init" and RANK == BAD:
        raise FileNotFoundError(2, "No such file or directory", "/data/tokens/shard_0001.bin")
    if MODE == "all_raise":
        raise KeyError("optimizer")
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("TIMEOUT", "12"))))
    if MODE == "warnings":
        logging.warning("flash_attn is not there (ModuleNotFoundError), falling back to sdpa")
        try:
            ask_metrics()
        except ConnectionResetError:
            logging.exception("the metrics server did not answer, trying again")
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    batches = iter(
        DataLoader(Rows(), batch_size=4, num_workers=1 if MODE in ("worker_killed", "bad_row") else 0)
    )
    for step in range(STEPS):
        batch = next(batches)
        go_wrong(step)
        if MODE == "monitored" and not (RANK == BAD and step == BAD_STEP):
            dist.monitored_barrier(timeout=timedelta(seconds=6))
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        if RANK == 0 or os.environ.get("EVERYONE"):
            logging.info("step %d loss %.4f", step, loss.item())
        save_checkpoint(model, step)
    dist.barrier()
    if RANK == 0:
        logging.info("training finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    (record(main) if os.environ.get("RECORD") else main)()
