"""A small training of gloo ranks that ends badly, as KIND chooses, without `record`.

For `benchmarks.last_words`. Rank 1 is at fault from step AT_STEP on.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
KIND = os.environ["KIND"]
AT_STEP = int(os.environ.get("AT_STEP", "40"))
STEPS = int(os.environ.get("STEPS", "100000"))
FAULTY = RANK == 1
TIMEOUT_SECONDS = {"timeout": 25.0}.get(KIND, 1800.0)
LABELS = {"cat": 0}


def compute(seconds: float) -> None:
    """Use the processor for that long."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        torch.ones(64, 64) @ torch.ones(64, 64)


def wait_for_flag() -> None:
    """Poll for a file that never comes."""
    while not os.path.exists("/nonexistent/flag"):
        time.sleep(0.5)


def tokenize() -> int:
    """Count without end."""
    number = 0
    while True:
        number += 1


def write_results(seconds: float) -> None:
    """Work on alone, in pieces."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        compute(0.02)
        time.sleep(0.05)


def load_batch(step: int) -> torch.Tensor:
    """One batch; where the faulty rank stops."""
    if FAULTY and step == AT_STEP:
        fail_in_loader()
    return torch.full((64,), float(step))


def fail_in_loader() -> None:
    """What goes wrong while a batch is loaded."""
    if KIND == "key_error":
        LABELS["dog"]
    elif KIND == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif KIND == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif KIND == "exits":
        sys.exit(3)
    elif KIND == "fifo":
        os.mkfifo(name := f"{tempfile.mkdtemp()}/batch.fifo")
        Path(name).read_bytes()
    elif KIND == "loop":
        tokenize()
    elif KIND == "polls":
        wait_for_flag()
    elif KIND == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif KIND == "timeout":
        time.sleep(3600)


def main() -> None:
    """Train, and end badly."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))
    for step in range(STEPS):
        if FAULTY and step == AT_STEP and KIND == "leaves":
            write_results(70.0)  # and ends well, while the other waits
            os._exit(0)
        if FAULTY and step == AT_STEP and KIND == "ends_early":
            return
        batch = load_batch(step)
        if KIND != "sleep_alike":
            compute(0.02)
        if KIND == "sleep_alike":
            time.sleep(0.3)
        if FAULTY and step == AT_STEP and KIND == "left_out":
            while True:
                time.sleep(1)
        if FAULTY and step == AT_STEP and KIND in ("other_call", "sleep_alike"):
            dist.broadcast(batch, src=1)
        if FAULTY and step == AT_STEP and KIND == "other_size":
            batch = torch.zeros(128)
        dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
