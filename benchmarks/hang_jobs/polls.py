"""Jobs with waits that poll, and with ranks that never came; none of them knows gpudiag.

`torchrun --nproc-per-node 4 polls.py KIND FOLDER`. Rank 1 goes wrong; the line at which it then stays ends in
the comment `# KIND`. Kinds that begin with `healthy_` poll as well, and go on. `FOLDER/ready` is made just
before, `FOLDER/begun.RANK` when a rank begins.
"""

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import Manager, shared_memory
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GUILTY = 1
SECONDS = float(os.environ.get("SECONDS_TO_RUN", "600"))
torch.set_num_threads(1)
index_lock = threading.Lock()


def begin() -> None:
    """Leave a sign that this rank is about to go wrong."""
    if RANK == GUILTY or KIND.startswith("all_"):
        (FOLDER / "ready").touch()


def soft_lock() -> None:
    """A lock file whose owner was killed."""
    from filelock import SoftFileLock

    with SoftFileLock(str(FOLDER / "model.lock")):  # soft_lock
        pass


def file_lock() -> None:
    """A lock that another program holds."""
    from filelock import FileLock

    with FileLock(str(FOLDER / "cache.lock")):  # file_lock
        pass


def own_lock() -> None:
    """A lock file of the script's own."""
    path = str(FOLDER / "data.lock")
    while os.path.exists(path):
        time.sleep(0.2)  # own_lock


def store_wait() -> None:
    """A key that nobody sets."""
    store = dist.distributed_c10d._get_default_store()
    store.wait(["weights are ready"])  # store_wait


def queue_timeout() -> None:
    """A queue that nothing fills, asked again and again."""
    filled: queue.Queue[int] = queue.Queue()
    while True:
        try:
            filled.get(timeout=0.2)  # queue_timeout
            break
        except queue.Empty:
            continue


def event_wait() -> None:
    """An event that nobody sets."""
    event = threading.Event()
    while not event.wait(timeout=0.1):  # event_wait
        pass


def manager_queue() -> None:
    """A queue in another process."""
    with Manager() as manager:
        filled = manager.Queue()
        begin()
        filled.get()  # manager_queue


def spin_flag() -> None:
    """A flag in shared memory, asked without a pause."""
    memory = shared_memory.SharedMemory(create=True, size=64)
    begin()
    flags: Any = memory.buf
    while flags[0] == 0:  # spin_flag
        pass


def poll_flag() -> None:
    """The same with the shortest of pauses."""
    memory = shared_memory.SharedMemory(create=True, size=64)
    begin()
    flags: Any = memory.buf
    while flags[0] == 0:  # poll_flag
        time.sleep(0)  # poll_flag


class Slow(Dataset[torch.Tensor]):
    """Rows that take their time, or none that come."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, place: int) -> torch.Tensor:
        if KIND == "healthy_slow_loader":
            time.sleep(8)
        if KIND == "healthy_slow_rank" and RANK == GUILTY:
            time.sleep(8)
        if KIND.startswith("all_") and place > 40:
            with index_lock:  # all_loaders
                pass
        return torch.full((8,), float(place))


class Stream(IterableDataset[torch.Tensor]):
    """A stream that dries up on one rank."""

    def __iter__(self) -> Any:
        number = 0
        while True:
            number += 1
            if number > 40 and RANK == GUILTY:
                begin()
                with open(FOLDER / "fifo") as file:  # stream_loader
                    file.read()
            yield torch.full((8,), float(number))


def load(rows: Any, workers: int = 2) -> None:
    """Train on what a loader gives."""
    kept = workers > 0
    loader = DataLoader(
        rows, batch_size=1, num_workers=workers, persistent_workers=kept, multiprocessing_context="fork"
    )
    if KIND == "all_loaders":
        index_lock.acquire()
    for rows_of_step in loader:  # all_loaders stream_loader
        total = rows_of_step.sum()
        dist.all_reduce(total)
        if KIND == "all_loaders":
            begin()


def ring() -> None:
    """Flags in shared memory between all ranks, without a group; rank 1 may stop at a FIFO."""
    name = f"ring_{os.environ['MASTER_PORT']}"
    if RANK == 0:
        memory = shared_memory.SharedMemory(name=name, create=True, size=64)
    else:
        while True:
            try:
                memory = shared_memory.SharedMemory(name=name)
                break
            except (FileNotFoundError, ValueError):  # not there, or of no length yet
                time.sleep(0.1)
    (FOLDER / f"begun.{RANK}").touch()
    for step in range(1, 1_000_000):
        if step == 60 and KIND == "flag_ring" and RANK == GUILTY:
            begin()
            open(FOLDER / "fifo").read()  # noqa: SIM115 - flag_ring
        turn(memory.buf, step)
        time.sleep(0.02)


def turn(flags: Any, step: int) -> None:
    """Wait until the rank before this one has had its turn, and have one."""
    before = (RANK - 1) % WORLD
    own = step % 250
    while flags[before] != (own if RANK else (step - 1) % 250):
        time.sleep(0)
    flags[RANK] = own


def answer() -> None:
    """An answer that does not come, asked for by every rank; the server is one thread of rank 0."""
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname()) as link:
        begin()
        link.recv(10)  # answer


def download() -> None:
    """Rank 0 fetches for a while, in a thread, and asks whether it is done; the others wait."""
    done = threading.Event()

    def fetch() -> None:
        until = time.monotonic() + SECONDS
        with open(FOLDER / "weights", "wb") as file:
            while time.monotonic() < until:
                file.seek(0)
                file.write(bytes(4 << 20))
                time.sleep(0.2)
        done.set()

    if RANK == 0:
        threading.Thread(target=fetch, daemon=True).start()
        while not done.is_set():
            time.sleep(0.1)
    dist.barrier()


def poll_program() -> None:
    """Rank 0 starts a program that computes, and asks whether it has ended."""
    if RANK == 0:
        program = subprocess.Popen(
            [sys.executable, "-c", f"import time\nu = time.time() + {SECONDS}\nwhile time.time() < u: pass"]
        )
        while program.poll() is None:
            time.sleep(0.1)
    dist.barrier()


def consume() -> None:
    """A thread gives work twice a second, and the main one asks for it ten times a second."""
    work: queue.Queue[int] = queue.Queue()

    def give() -> None:
        for number in range(int(2 * SECONDS)):
            time.sleep(0.5)
            work.put(number)

    threading.Thread(target=give, daemon=True).start()
    for _ in range(int(1.8 * SECONDS)):
        while True:
            try:
                number = work.get(timeout=0.1)
                break
            except queue.Empty:
                continue
        dist.all_reduce(torch.ones(4) * number)
    dist.barrier()
    dist.destroy_process_group()


HUNG = {
    "soft_lock": soft_lock,
    "file_lock": file_lock,
    "own_lock": own_lock,
    "store_wait": store_wait,
    "queue_timeout": queue_timeout,
    "event_wait": event_wait,
    "manager_queue": manager_queue,
    "spin_flag": spin_flag,
    "poll_flag": poll_flag,
    "answer": answer,
}
HEALTHY = {"healthy_download": download, "healthy_program": poll_program, "healthy_consumer": consume}


def main() -> None:
    """Start as the kind asks for."""
    if KIND.startswith("healthy_") and KIND not in (
        "healthy_download",
        "healthy_program",
    ):  # which end by themselves
        end = threading.Timer(SECONDS, os._exit, (0,))
        end.daemon = True
        end.start()
    if KIND in ("flag_ring", "healthy_ring"):
        ring()
        return
    if KIND == "healthy_filling":
        (FOLDER / f"begun.{WORLD - 1}").touch()
        time.sleep(6.0 * RANK)
    dist.init_process_group("gloo")
    (FOLDER / f"begun.{RANK}").touch()
    if KIND in ("all_loaders", "healthy_slow_loader", "healthy_slow_rank"):
        load(Slow())
    elif KIND == "stream_loader":
        load(Stream())
    elif KIND in HEALTHY:
        HEALTHY[KIND]()
    elif KIND in HUNG:
        if RANK == GUILTY:
            if KIND not in ("manager_queue", "spin_flag", "poll_flag", "answer"):
                begin()
            HUNG[KIND]()
        dist.barrier()
    else:
        for number in range(int(SECONDS)):
            dist.all_reduce(torch.ones(1) * number)
            time.sleep(1)


if __name__ == "__main__":
    main()
