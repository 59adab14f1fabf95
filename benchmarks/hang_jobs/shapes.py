"""Jobs of other shapes that hang, each in the way that is asked for; none of them knows gpudiag.

`torchrun --nproc-per-node 4 shapes.py KIND FOLDER`, `mpirun -np 4 python shapes.py mpirun FOLDER`, `python
shapes.py spawn FOLDER`. The guilty rank is 1. The line in which it stays ends in the comment `# KIND`.
"""

import asyncio
import ctypes
import fcntl
import http.client
import io
import multiprocessing
import os
import pickle
import queue
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
GUILTY = 1
torch.set_num_threads(1)


def is_guilty() -> bool:
    """Whether this is the rank that goes wrong; announced before it does."""
    if dist.get_rank() == GUILTY:
        (FOLDER / "ready").touch()
    return dist.get_rank() == GUILTY


class Trainer:
    """A trainer as people write it."""

    def __init__(self, batches: int) -> None:
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.batches = batches

    def step(self, batch: torch.Tensor) -> float:
        """One step."""
        loss = self.model(batch).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()  # waits_backward
        self.optimizer.step()
        return float(loss.detach())

    def fit(self) -> None:
        """All steps, and something in between."""
        for number in range(self.batches):
            if number == 5:
                self.at_five()
            self.step(torch.randn(8, 32))
        if KIND == "uneven_batches":
            is_guilty()
        dist.barrier()  # uneven_batches

    def at_five(self) -> None:
        """What the kind asks for."""
        WAYS.get(KIND, lambda: None)()


def with_lock() -> None:
    """Another thread holds the lock."""
    if not is_guilty():
        return
    lock = threading.RLock()

    def refresh_cache() -> None:
        with lock:
            threading.Event().wait()

    threading.Thread(target=refresh_cache, daemon=True).start()
    time.sleep(0.3)
    with lock:  # with_lock
        print("never")


def http_server() -> None:
    """A server that takes the request and never answers."""
    if not is_guilty():
        return
    server = socket.create_server(("127.0.0.1", 0))
    connection = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1])
    connection.request("GET", "/tokens")
    connection.getresponse()  # http_server


def raw_socket() -> None:
    """A peer that is silent."""
    if not is_guilty():
        return
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    client.recv(10)  # raw_socket


def sqlite_lock() -> None:
    """A database that another connection has locked."""
    if not is_guilty():
        return
    path = str(FOLDER / "runs.db")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("create table t (x)")
    other.execute("begin exclusive")
    mine = sqlite3.connect(path, timeout=3600)
    mine.execute("insert into t values (1)")  # sqlite_lock


def queue_get() -> None:
    """A queue that nobody fills."""
    if is_guilty():
        queue.Queue[int]().get()  # queue_get


def subprocess_run() -> None:
    """A program that does not end."""
    if is_guilty():
        subprocess.run(["sleep", "3600"], check=True)  # subprocess_run


def reads_input() -> None:
    """A pipe that nobody writes to, as `input()` reads it."""
    if is_guilty():
        ends = os.pipe()
        os.read(ends[0], 1)  # reads_input


def flock() -> None:
    """A file that another process has locked."""
    if not is_guilty():
        return
    path = FOLDER / "cache.lock"
    path.touch()
    subprocess.Popen(["flock", str(path), "sleep", "3600"])
    time.sleep(0.7)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # flock


def deep_in_library() -> None:
    """A line deep in the standard library, called from a pickle."""
    if is_guilty():
        pickle.Unpickler(Slow()).load()  # deep_in_library


class Slow(io.RawIOBase):
    """A file whose reads never end."""

    def read(self, size: int = -1) -> bytes:  # noqa: D102
        threading.Event().wait()  # deep_in_library
        return b""

    def readline(self, size: int | None = -1) -> bytes:  # noqa: D102
        return self.read()


def future_result() -> None:
    """A pool whose task does not end."""
    if is_guilty():
        pool = ThreadPoolExecutor(1)
        pool.submit(sleeps_in_pool).result()  # future_result


def sleeps_in_pool() -> None:
    """The task."""
    time.sleep(3600)


def process_pool() -> None:
    """A pool of processes, one of which is stuck in C."""
    if is_guilty():
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            list(pool.map(tokenize, range(8)))  # process_pool


def tokenize(place: int) -> int:
    """One task; the fourth never ends."""
    if place == 3:
        ctypes.CDLL(None).pause()  # process_pool
    return place


def event_loop() -> None:
    """A coroutine that waits for an event that never comes."""
    if is_guilty():
        asyncio.run(wait_for_shard())  # event_loop


async def wait_for_shard() -> None:
    """The coroutine."""
    await asyncio.Event().wait()


def barrier_on_rank() -> None:
    """A barrier under `if rank == ...`."""
    if dist.get_rank() == GUILTY:
        (FOLDER / "ready").touch()
        dist.barrier()  # barrier_on_rank


def monitored() -> None:
    """A monitored barrier that one rank does not reach."""
    if is_guilty():
        time.sleep(3600)  # monitored
    from datetime import timedelta

    dist.monitored_barrier(timeout=timedelta(seconds=3600))


def object_list() -> None:
    """A broadcast of objects that one rank does not reach."""
    if is_guilty():
        time.sleep(3600)  # object_list
    dist.broadcast_object_list([None], src=0)


def wrong_source() -> None:
    """A broadcast from another rank."""
    tensor = torch.ones(64)
    source = 3 if is_guilty() else 0
    dist.broadcast(tensor, source)  # wrong_source
    dist.all_reduce(tensor)


def asynchronous() -> None:
    """Work that is begun, and waited for; one rank never begins it."""
    if is_guilty():
        time.sleep(3600)  # asynchronous
    work = dist.all_reduce(torch.ones(64), async_op=True)
    work.wait()


def asynchronous_skip() -> None:
    """Work that one rank does not begin, and goes on to the next one."""
    tensor = torch.ones(64)
    if not is_guilty():
        work = dist.all_gather([torch.zeros(64) for _ in range(4)], tensor, async_op=True)
        work.wait()
    else:
        dist.all_reduce(torch.ones(8), group=None)  # asynchronous_skip


def subgroup() -> None:
    """A group of two whose other member sleeps."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if is_guilty():
        time.sleep(3600)  # subgroup
    dist.all_reduce(torch.ones(4), group=pairs[dist.get_rank() // 2])
    dist.barrier()


def store_wait() -> None:
    """A key that one rank never sets."""
    store = dist.distributed_c10d._get_default_store()
    if is_guilty():
        time.sleep(3600)  # store_wait
        store.set("ready", "1")
    store.wait(["ready"])


def receives() -> None:
    """A message that is never sent."""
    if is_guilty():
        threading.Event().wait()  # receives
    if dist.get_rank() == 0:
        dist.recv(torch.ones(4), src=GUILTY)
    dist.barrier()


def gathers() -> None:
    """A gather that one rank sends elsewhere."""
    target = 2 if is_guilty() else 0
    here = [torch.zeros(8) for _ in range(4)] if dist.get_rank() == target else None
    dist.gather(torch.ones(8), here, dst=target)  # gathers
    dist.barrier()  # gathers


def saves() -> None:
    """A checkpoint on a FIFO that nobody reads."""
    if is_guilty():
        save_checkpoint(FOLDER / "state.pt")
    dist.barrier()


def save_checkpoint(path: Path) -> None:
    """Save."""
    os.mkfifo(path)
    torch.save({"a": torch.ones(1 << 20)}, path)  # saves


def breakpoint_left() -> None:
    """A debugger's prompt."""
    if is_guilty():
        import pdb

        ends = os.pipe()
        prompt = pdb.Pdb(stdin=os.fdopen(ends[0]), stdout=sys.stdout)
        prompt.set_trace()
        print("stays")  # breakpoint_left


def condition_wait() -> None:
    """A condition that is never notified, in a method."""
    if is_guilty():
        condition = threading.Condition()
        with condition:
            condition.wait()  # condition_wait


def spin_wait() -> None:
    """A loop that asks and asks."""
    if is_guilty():
        wait_until(lambda: (FOLDER / "never").exists())


def wait_until(is_done: Callable[[], bool]) -> None:
    """Ask until it is done."""
    while not is_done():  # spin_wait
        pass  # spin_wait


def joins_thread() -> None:
    """A thread that does not end."""
    if is_guilty():
        thread = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
        thread.start()
        thread.join()  # joins_thread


def swallowed_in_helper() -> None:
    """An exception that a helper swallows, so that a collective is left out."""
    for number in range(3):
        try:
            check_and_share(number)
        except Exception as error:  # noqa: BLE001 - that is the point
            print("ignored", error)
    dist.broadcast(torch.ones(3), 0)  # swallowed_in_helper


def check_and_share(number: int) -> None:
    """Share a number; on the guilty rank it cannot be had."""
    if number == 2 and is_guilty():
        raise RuntimeError("no number")
    dist.all_gather_object([None] * 4, number)


WAYS: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        *(
            with_lock,
            http_server,
            raw_socket,
            sqlite_lock,
            queue_get,
            subprocess_run,
            reads_input,
            flock,
            deep_in_library,
        ),
        *(
            future_result,
            process_pool,
            event_loop,
            barrier_on_rank,
            monitored,
            object_list,
            wrong_source,
            asynchronous,
            asynchronous_skip,
            subgroup,
        ),
        *(
            store_wait,
            receives,
            gathers,
            saves,
            breakpoint_left,
            condition_wait,
            spin_wait,
            joins_thread,
            swallowed_in_helper,
        ),
    )
}


class Stream(IterableDataset[torch.Tensor]):
    """A stream whose worker waits for a file in one rank."""

    def __iter__(self) -> Any:
        for number in range(1000):
            if number == 60 and int(os.environ.get("RANK", "0")) == GUILTY:
                (FOLDER / "ready").touch()
                os.mkfifo(FOLDER / f"shard-{os.getpid()}")
                read_shard(FOLDER / f"shard-{os.getpid()}")
            yield torch.randn(32)


def read_shard(path: Path) -> bytes:
    """A shard's bytes."""
    return path.read_bytes()  # stream


def train_stream(start: str | None) -> None:
    """Train from a stream by workers."""
    trainer = Trainer(0)
    for batch in DataLoader(Stream(), 4, num_workers=2, multiprocessing_context=start, prefetch_factor=2):
        trainer.step(batch)


def train_fsdp() -> None:
    """Sharded training in which one rank stays behind."""
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    fully_shard(model)
    for number in range(1000):
        if number == 5 and is_guilty():
            time.sleep(3600)  # fsdp
        model(torch.randn(4, 32)).sum().backward()


def run() -> None:
    """Train as the kind asks for."""
    dist.init_process_group("gloo")
    if KIND in ("stream", "stream_spawn"):
        train_stream("spawn" if KIND == "stream_spawn" else None)
    elif KIND == "fsdp":
        train_fsdp()
    elif KIND == "uneven_batches":
        Trainer(10 if dist.get_rank() == GUILTY else 20).fit()
    elif KIND == "uneven_ddp":
        for number in range(20 - 6 * (dist.get_rank() == GUILTY)):
            dist.all_reduce(torch.ones(3) * number)
        is_guilty()
        dist.all_gather_object([None] * 4, "done")  # uneven_ddp
    else:
        Trainer(1000).fit()


def spawned(place: int, port: int) -> None:
    """A rank of torch.multiprocessing.spawn."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(place), WORLD_SIZE="4")
    dist.init_process_group("gloo")
    for number in range(1000):
        if number == 5 and is_guilty():
            queue.SimpleQueue[int]().get()  # spawn process
        dist.all_reduce(torch.ones(9))


def main() -> None:
    """Start as the kind asks for."""
    port = int(os.environ.get("PORT", "29717"))
    if KIND == "spawn":
        torch.multiprocessing.spawn(spawned, (port,), 4)  # type: ignore[attr-defined, no-untyped-call]
    elif KIND == "process":
        context = torch.multiprocessing.get_context("fork")
        ranks = [context.Process(target=spawned, args=(place, port)) for place in range(4)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
    elif KIND == "mpirun":
        spawned(int(os.environ["OMPI_COMM_WORLD_RANK"]), port)
    else:
        run()


if __name__ == "__main__":
    main()
