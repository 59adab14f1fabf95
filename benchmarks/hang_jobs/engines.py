"""A server with four workers, as inference engines are: no launcher, no RANK, a parent that is no rank.

`python engines.py TRANSPORT_BEHAVIOUR FOLDER`, such as `pipes_lora` or `ring_idle`. Requests come to the
workers over pipes, ZMQ, a ring in shared memory, calls of Ray actors, or a broadcast by worker 0. One worker
goes wrong at request 20 and leaves FOLDER/ready before it does; the line in which it then stays ends in the
comment `# BEHAVIOUR`. It knows nothing of gpudiag.
"""

import asyncio
import fcntl
import importlib
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

TRANSPORT, _, BEHAVIOUR = sys.argv[1].partition("_") if len(sys.argv) > 2 else ("pipes", "", "idle")
FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()
GUILTY = int(os.environ.get("GUILTY", "2"))
PORT = os.environ.get("PORT", "29555")
WORKERS, WRONG_AT, SLOTS, SLOT_BYTES = 4, 20, 4, 256
# How the workers are started, and which servers are two processes, with titles of their own.
STARTED_BY = {"pipes": "spawn", "forkserver": "forkserver"}  # the others fork
IN_LEVELS = ("zmq", "ring", "broadcast")


def rename(title: str) -> None:
    """Give this process a title, as vLLM and SGLang do, which overwrites its command line."""
    with suppress(ImportError):
        setproctitle = importlib.import_module("setproctitle")

        setproctitle.setproctitle(title)


class Pipes:
    """A pipe to each worker."""

    def __init__(self) -> None:
        self.pairs = [multiprocessing.Pipe() for _ in range(WORKERS)]

    def send(self, request: int) -> None:
        """Give a request to all workers."""
        for server, _ in self.pairs:
            server.send(request)

    def next_request(self, worker: int) -> int:
        """The next request of a worker."""
        return int(self.pairs[worker][1].recv())  # idle skip

    def answer(self, request: int) -> None:
        """Give the result of a request to the server."""
        self.pairs[0][1].send(request)

    def result(self) -> int:
        """The next result."""
        return int(self.pairs[0][0].recv())


class Zmq:
    """A ZMQ socket to each worker, and one for results, over Unix sockets."""

    def __init__(self) -> None:
        self.sockets: dict[str, Any] = {}

    def _open(self, name: str, kind: str, *, binds: bool) -> Any:
        zmq = importlib.import_module("zmq")

        if name not in self.sockets:
            self.sockets[name] = zmq.Context.instance().socket(getattr(zmq, kind))
            address = f"ipc://{FOLDER}/{name}"
            self.sockets[name].bind(address) if binds else self.sockets[name].connect(address)
        return self.sockets[name]

    def send(self, request: int) -> None:
        """Give a request to all workers."""
        for worker in range(WORKERS):
            self._open(f"in{worker}", "PUSH", binds=True).send(pickle.dumps(request))

    def next_request(self, worker: int) -> int:
        """The next request of a worker."""
        requests = self._open(f"in{worker}", "PULL", binds=False)
        return int(pickle.loads(requests.recv()))  # idle skip

    def answer(self, request: int) -> None:
        """Give the result of a request to the server."""
        self._open("out", "PUSH", binds=False).send(pickle.dumps(request))

    def result(self) -> int:
        """The next result."""
        return int(pickle.loads(self._open("out", "PULL", binds=True).recv()))


class Ring:
    """A ring of slots in shared memory whose flags are polled by every worker."""

    def __init__(self) -> None:
        self.name = f"ring_{PORT}"
        self.memory: shared_memory.SharedMemory | None = None
        self.count = 0
        self.results = multiprocessing.get_context("spawn").SimpleQueue()

    def send(self, request: int) -> None:
        """Give a request to all workers."""
        buffer = self._open(creates=True)
        at = self.count % SLOTS * SLOT_BYTES
        while self.count >= SLOTS and any(buffer[at + worker] == 1 for worker in range(WORKERS)):
            time.sleep(0)
        buffer[at + WORKERS] = request % 256
        for worker in range(WORKERS):
            buffer[at + worker] = 1
        self.count += 1

    def next_request(self, worker: int) -> int:
        """The next request of a worker."""
        buffer = self._open(creates=False)
        at = self.count % SLOTS * SLOT_BYTES
        while buffer[at + worker] != 1:  # idle skip
            time.sleep(0.001)  # idle skip
        request = buffer[at + WORKERS]
        buffer[at + worker] = 2
        self.count += 1
        return int(request)

    def answer(self, request: int) -> None:
        """Give the result of a request to the server."""
        self.results.put(request)

    def result(self) -> int:
        """The next result."""
        return int(self.results.get())

    def _open(self, *, creates: bool) -> Any:
        while self.memory is None:
            with suppress(FileNotFoundError):
                self.memory = shared_memory.SharedMemory(self.name, creates, SLOTS * SLOT_BYTES)
            time.sleep(0.01)
        return self.memory.buf

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "memory": None, "count": 0}


class Broadcast(Pipes):
    """Worker 0 reads the requests and gives them to the others by a broadcast."""

    def next_request(self, worker: int) -> int:
        """The next request of a worker."""
        import torch
        import torch.distributed as dist

        request = torch.zeros(1, dtype=torch.int64)
        if worker == 0:
            request[0] = super().next_request(0)
        dist.broadcast(request, src=0)
        return int(request)

    def send(self, request: int) -> None:
        """Give a request to worker 0."""
        self.pairs[0][0].send(request)


TRANSPORTS: dict[str, Callable[[], Any]] = {"zmq": Zmq, "ring": Ring, "broadcast": Broadcast}


def is_wrong(worker: int, request: int) -> bool:
    """Whether it is this worker's time to go wrong; announced before it does."""
    wrong = worker == GUILTY and request == WRONG_AT
    if wrong:
        (FOLDER / "ready").touch()
    return wrong


def load_lora(address: str) -> bytes:
    """An adapter, from a server that does not answer."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port))) as link:
        link.sendall(b"GET /adapter HTTP/1.0\r\n\r\n")
        return link.recv(65536)  # lora apart


def wait_for_cache() -> None:
    """The lock of a cache that another program holds."""
    with open(FOLDER / "engine.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # lock


def load_weights(worker: int) -> None:
    """The weights, from a file that never comes where the worker is the guilty one."""
    if BEHAVIOUR == "start" and worker == GUILTY:
        (FOLDER / "ready").touch()
        with open(FOLDER / "weights") as file:  # start
            file.read()


def warm_up() -> float:
    """Compute for long, as a worker that captures graphs or compiles."""
    import torch

    total = 0.0
    for number in range(10**9):
        batch = torch.full((64, 64), float(number % 7))  # slow
        total += float((batch @ batch).mean())  # slow
    return total


def sample(worker: int, request: int) -> None:
    """What a worker does before the collective of a request."""
    if not is_wrong(worker, request):
        return
    if BEHAVIOUR in ("lora", "apart"):
        load_lora(os.environ["ADAPTERS"])
    elif BEHAVIOUR == "lock":
        wait_for_cache()
    elif BEHAVIOUR == "slow":
        warm_up()
    elif BEHAVIOUR == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif BEHAVIOUR == "skip":
        raise ValueError("a request with an empty prompt")


def execute(worker: int, request: int) -> None:
    """One request, on all workers."""
    import torch
    import torch.distributed as dist

    sample(worker, request)
    if BEHAVIOUR == "apart":
        return  # requests without a collective: the others are ready for the next one
    if BEHAVIOUR == "killed":
        meet_by_store(worker, request)
        return
    hidden = torch.ones(512)
    dist.all_reduce(hidden)  # waits


def meet_by_store(worker: int, request: int) -> None:
    """Wait for all workers by the store: gloo's own collectives end at once where a process is gone."""
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    store.set(f"{request}/{worker}", "here")
    store.wait([f"{request}/{one}" for one in range(WORKERS)], timedelta(hours=1))


def work(worker: int, transport: Any) -> None:
    """A worker's life."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rename(f"VLLM::Worker_TP{worker}")
    load_weights(worker)
    dist.init_process_group(
        "gloo",
        rank=worker,
        world_size=WORKERS,
        init_method=f"tcp://127.0.0.1:{PORT}",
        timeout=timedelta(hours=1),
    )
    while True:
        request = transport.next_request(worker)
        try:
            execute(worker, request)
        except ValueError as error:
            print("this request is skipped:", error)
            continue
        if worker == 0:
            transport.answer(request)


def run_engine(transport: Any, requests: "queue.Queue[int] | None" = None) -> None:
    """Start the workers and give them requests: 20 and more, without end, or none at all after ten."""
    if requests is not None:
        rename("VLLM::EngineCore")
    context: Any = multiprocessing.get_context(STARTED_BY.get(TRANSPORT, "fork"))
    if TRANSPORT not in STARTED_BY:
        importlib.import_module("torch")  # once, for all of them
    workers = [
        context.Process(target=work, args=(one, transport), name=f"worker {one}") for one in range(WORKERS)
    ]
    for one in workers:
        one.start()
    last = 10 if BEHAVIOUR == "idle" else 10**9
    for request in range(last):
        transport.send(request % 200)
        if BEHAVIOUR != "apart" or request < WRONG_AT:
            transport.result()
        elif request == WRONG_AT + 1:
            break
        time.sleep(0.02)
        if request == 30:
            (FOLDER / "begun").touch()
    if BEHAVIOUR == "idle":
        (FOLDER / "ready").touch()
    if requests is not None:
        requests.get()
    asyncio.run(listen())


async def listen() -> None:
    """Wait for requests over the network."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    await server.serve_forever()


def run_engine_core(transport: Any) -> None:
    """The middle process: a thread reads requests for it."""
    requests: queue.Queue[int] = queue.Queue()
    mine, _ = socket.socketpair()
    threading.Thread(target=lambda: mine.recv(1), daemon=True, name="input").start()
    run_engine(transport, requests)


def run_ray() -> None:
    """The engine as Ray actors, one for each worker."""
    ray = importlib.import_module("ray")

    ray.init(
        num_cpus=WORKERS,
        include_dashboard=False,
        logging_level="error",
        _temp_dir=os.environ.get("RAY_FOLDER"),
    )

    # Ray makes an actor of it
    class RayWorker:
        def __init__(self, worker: int) -> None:
            self.worker = worker

        def start(self) -> None:
            import torch
            import torch.distributed as dist

            torch.set_num_threads(1)
            load_weights(self.worker)
            dist.init_process_group(
                "gloo",
                rank=self.worker,
                world_size=WORKERS,
                init_method=f"tcp://127.0.0.1:{PORT}",
                timeout=timedelta(hours=1),
            )

        def execute(self, request: int) -> int:
            execute(self.worker, request)
            return request

    actors = [ray.remote(num_cpus=0)(RayWorker).remote(one) for one in range(WORKERS)]
    ray.get([one.start.remote() for one in actors])
    for request in range(10 if BEHAVIOUR == "idle" else 10**9):
        ray.get([one.execute.remote(request) for one in actors])
        time.sleep(0.02)
        if request == 30:
            (FOLDER / "begun").touch()
    (FOLDER / "ready").touch()
    asyncio.run(listen())


def main() -> None:
    """The server."""
    silent = socket.create_server(("127.0.0.1", 0))
    os.environ["ADAPTERS"] = f"127.0.0.1:{silent.getsockname()[1]}"
    if BEHAVIOUR == "start":
        os.mkfifo(FOLDER / "weights")
    fcntl.flock(os.open(FOLDER / "engine.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC), fcntl.LOCK_EX)
    if TRANSPORT == "ray":
        run_ray()
        return
    transport = TRANSPORTS.get(TRANSPORT, Pipes)()
    if TRANSPORT in IN_LEVELS:
        core = multiprocessing.get_context("spawn").Process(target=run_engine_core, args=(transport,))
        core.start()
        asyncio.run(listen())
    multiprocessing.set_forkserver_preload(["torch"])
    run_engine(transport)


if __name__ == "__main__":
    main()
