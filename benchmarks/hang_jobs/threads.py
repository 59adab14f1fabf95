"""Jobs with threads, process groups and compilers beside the main thread, hung or healthy.

`torchrun --nproc-per-node 4 threads.py KIND FOLDER`; `python threads.py killed FOLDER` starts its ranks
itself, as does `never_came`. The guilty rank is 1, where one is; the line in which it stays ends in the
comment `# KIND`. HEALTHY names those that go on.
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict_saver as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
GUILTY = 1
HEALTHY = ("saves_apart", "metrics_apart", "groups_of_all", "prepares", "joins_worker", "compiles")
SECONDS = float(os.environ.get("SECONDS_TO_RUN", "60"))
torch.set_num_threads(1)
torch._dynamo.config.automatic_dynamic_shapes = False


def is_ready() -> None:
    """Announce that the job is about to go wrong, or continues."""
    (FOLDER / "ready").touch()
    (FOLDER / f"begun.{dist.get_rank()}").touch()


def model() -> torch.nn.Module:
    """Some layers."""
    return torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(16)])


def saves(group: dist.ProcessGroup | None) -> None:
    """Checkpoints in the background, in a group of their own or in that of all."""
    net, until = model(), time.monotonic() + SECONDS
    trained = DistributedDataParallel(net) if KIND == "saves_ddp" else net
    pending: Any = None
    is_ready()
    for _ in range(10**6):
        trained(torch.randn(8, 128)).sum().backward()  # saves_ddp
        for one in net.parameters():
            if trained is net:
                dist.all_reduce(one.grad)  # saves
            one.grad = None
        if pending is not None and group is not None:
            pending.result()
        place = tempfile.mkdtemp(dir=FOLDER) if dist.get_rank() == 0 else None
        name = [place]
        dist.broadcast_object_list(name, 0)  # saves saves_ddp
        pending = dcp.async_save({"model": net.state_dict()}, checkpoint_id=name[0], process_group=group)
        if group is None and trained is net:
            dist.barrier()  # saves
        ends = torch.tensor([float(time.monotonic() > until)])
        dist.broadcast(ends, 0)  # saves saves_ddp
        if ends.item():
            break
    if pending is not None:
        pending.result()


def share_metrics(group: dist.ProcessGroup | None) -> None:
    """A thread that adds up metrics of all ranks, beside the training."""
    ended = threading.Event()

    def add_up() -> None:
        for number in range(10**6):
            values = torch.zeros(3)
            if KIND == "metrics" and number == 3 and dist.get_rank() == GUILTY:
                time.sleep(0.7)
            every: list[Any] = [None] * dist.get_world_size()
            dist.gather_object(values, every if dist.get_rank() == 0 else None, group=group)  # metrics_thread
            ends = torch.tensor([float(ended.is_set())])
            dist.all_reduce(ends, group=group)
            if ends.item() >= dist.get_world_size():
                break

    thread = threading.Thread(target=add_up, name="metrics")
    is_ready()
    thread.start()
    until = time.monotonic() + SECONDS
    for step in range(10**6):
        total = torch.ones(1 << 16) * step
        dist.all_reduce(total)  # metrics
        time.sleep(0.01)
        over = torch.tensor([float(time.monotonic() > until)])
        dist.broadcast(over, 0)
        if over.item():
            break
    ended.set()
    thread.join()


def prefetch() -> None:
    """A thread that gets batches from rank 0, in the group in which gradients are shared."""
    batches: queue.Queue[torch.Tensor] = queue.Queue(2)

    def fetch() -> None:
        for number in range(10**6):
            if number == 10 and dist.get_rank() == GUILTY:
                is_ready()
                time.sleep(1.0)
            batch = torch.randn(1 << 10)
            dist.broadcast(batch, 0)  # prefetch_thread
            batches.put(batch)

    threading.Thread(target=fetch, name="prefetch", daemon=True).start()
    for _ in range(10**6):
        batch = batches.get()
        time.sleep(0.02)
        total = torch.ones(1 << 16) * batch.sum()
        dist.all_reduce(total)  # prefetch


def count_for_ever(numbers: list[int]) -> None:
    """Work that does not end."""
    while True:
        numbers[0] += 1  # joined_loop


def joins() -> None:
    """Rank 1 joins a thread."""
    if dist.get_rank() == GUILTY:
        is_ready()
        worker = threading.Thread(target=count_for_ever, args=([0],), name="tokenizer")
        worker.start()
        worker.join()
    dist.barrier()


def made_by_some() -> None:
    """A group that its members alone make, and then one that all make: its number differs."""
    rank = dist.get_rank()
    if rank < 2:
        dist.new_group([0, 1])
        if rank == GUILTY:
            is_ready()
    others = dist.new_group([1, 2, 3])  # made_by_some
    dist.barrier()
    if rank:
        dist.all_reduce(torch.ones(1), group=others)


def mesh_of_members() -> None:
    """Meshes that each rank makes only where it is a member."""
    plan = {"encoder": [0, 1], "decoder": [1, 2, 3]}
    meshes = {}
    for name, members in plan.items():
        if dist.get_rank() not in members:
            continue
        if name == "decoder" and dist.get_rank() == GUILTY:
            is_ready()
        meshes[name] = DeviceMesh("cpu", members, mesh_dim_names=(name,))  # mesh_of_members
    total = torch.ones(8)
    for mesh in meshes.values():
        dist.all_reduce(total, group=mesh.get_group())
    dist.barrier()


@torch.compile
def forward(weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """What is compiled."""
    return torch.relu(rows @ weights).sum()


def compiles() -> None:
    """A step that one rank compiles again, with a compiler that waits (CXX) or goes on."""
    weights, until = torch.randn(16, 16, requires_grad=True), time.monotonic() + SECONDS
    for step in range(10**6):
        length = 8
        if dist.get_rank() == GUILTY and step % 50 == 30:
            if step == 30:
                os.environ["COMPILER_WAITS"] = os.environ.get("WAITS", "")
                is_ready()
            length = 24 + step + os.getpid() % 1000  # nothing that an earlier job has compiled
        if KIND == "compiles" and step == 1:
            is_ready()
        loss: Any = forward(weights, torch.randn(length, 16))  # compiler_fifo compiler_lock
        loss.backward()
        dist.all_reduce(weights.grad)
        weights.grad = None
        ends = torch.tensor([float(time.monotonic() > until)])
        dist.broadcast(ends, 0)
        if ends.item():
            break


def prepares() -> None:
    """Rank 1 prepares data for some time, and writes it: a loop that has an end."""
    if dist.get_rank() == GUILTY:
        is_ready()
        until = time.monotonic() + SECONDS
        with open(FOLDER / "data", "wb") as file:
            while time.monotonic() < until:
                file.write(os.urandom(1 << 12))
                file.seek(0)
    dist.barrier()


def joins_worker() -> None:
    """Steps that wait for a thread which computes for a while."""
    until = time.monotonic() + SECONDS
    is_ready()
    for _ in range(10**6):
        worker = threading.Thread(target=lambda: sum(range(2_000_000)), name="worker")
        worker.start()
        worker.join()
        ends = torch.tensor([float(time.monotonic() > until)])
        dist.broadcast(ends, 0)
        if ends.item():
            break


def groups_of_all() -> None:
    """Process groups that all ranks make, again and again."""
    is_ready()
    until = time.monotonic() + SECONDS
    for _ in range(10**6):
        for pair in ([0, 1], [2, 3]):
            group = dist.new_group(pair)
            if dist.get_rank() in pair:
                dist.all_reduce(torch.ones(4), group=group)
                dist.destroy_process_group(group)
        ends = torch.tensor([float(time.monotonic() > until)])
        dist.broadcast(ends, 0)
        if ends.item():
            break


def start_by_hand() -> None:
    """Start four ranks without a launcher, and kill rank 1 once the others wait for it."""
    place = Path(__file__).resolve()
    variables = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PORT"]}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(place), KIND, str(FOLDER)],
            env={**os.environ, **variables, "RANK": str(rank)},
        )
        for rank in range(4)
    ]
    while not (FOLDER / "kill").exists():
        time.sleep(0.1)
    ranks[GUILTY].send_signal(signal.SIGKILL)
    ranks[GUILTY].wait()
    (FOLDER / "ready").touch()
    ranks[0].wait()


def by_hand() -> None:
    """A rank that is killed before it comes to the store, or after."""
    if KIND == "never_came" and os.environ["RANK"] == str(GUILTY):
        (FOLDER / "kill").touch()
        time.sleep(3600)
    dist.init_process_group("gloo")
    if KIND == "killed" and dist.get_rank() == GUILTY:
        (FOLDER / "kill").touch()
        time.sleep(3600)
    dist.new_group([0, 1, 2, 3])  # killed


WAYS = {
    "saves": lambda: saves(None),
    "saves_ddp": lambda: saves(None),
    "saves_apart": lambda: saves(dist.new_group(backend="gloo")),
    "metrics": lambda: share_metrics(None),
    "metrics_apart": lambda: share_metrics(dist.new_group()),
    "prefetch": prefetch,
    "joined_loop": joins,
    "made_by_some": made_by_some,
    "mesh_of_members": mesh_of_members,
    "compiler_fifo": compiles,
    "compiler_lock": compiles,
    "compiles": compiles,
    "prepares": prepares,
    "joins_worker": joins_worker,
    "groups_of_all": groups_of_all,
}


def main() -> None:
    """Start as the kind asks for."""
    if KIND in ("killed", "never_came"):
        by_hand() if "RANK" in os.environ else start_by_hand()
        return
    dist.init_process_group("gloo")
    WAYS[KIND]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
