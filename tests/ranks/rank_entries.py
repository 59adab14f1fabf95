"""What ranks run in these tests: without torch wherever torch is not the point."""

import contextlib
import datetime
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpudiag.linux.proc import find_process
from gpudiag.ranks.rank.context import RankContext

ITERATIONS = 4


def rounds(context: RankContext) -> dict[str, Any]:
    """All stages, with a collective made of files: everybody waits until everybody has come."""
    progress, sequence = context.progress, 0
    for stage in ("rendezvous", "init", "warmup", "measure", "verify"):
        progress.enter_stage(stage)
        for iteration in range(ITERATIONS if stage == "measure" else 1):
            if stage == "measure":
                progress.before_iteration(iteration)
            mismatch = progress.pop_mismatch()
            progress.before_operation(sequence, "barrier", "uint8", 1 if mismatch is None else 2, 0.001)
            meet(context, sequence, comes=mismatch is None)
            progress.after_operation(sequence)
            sequence += 1
        progress.emit({"finished": stage})
    flipped = [iteration for iteration in range(ITERATIONS) if progress.should_flip_bit(iteration)]
    return {"rank": context.rank, "flipped": flipped, "arguments": dict(context.arguments)}


def imported_in(context: RankContext) -> dict[str, Any]:
    """In which process a module was imported, and which this is."""
    from tests.ranks.once import IMPORTED_IN

    return {"imported_in": IMPORTED_IN, "here": os.getpid()}


def timed(context: RankContext) -> dict[str, Any]:
    """Enough timed iterations to tell who is late."""
    context.progress.enter_stage("measure")
    for iteration in range(30):
        context.progress.before_iteration(iteration)
        context.progress.before_operation(iteration, "barrier", "uint8", 1, 0.1)
        meet(context, iteration)
        context.progress.after_operation(iteration)
    return {}


def meet(context: RankContext, sequence: int, *, comes: bool = True) -> None:
    """Return when every rank is here; raise after 30 s, far beyond what any test waits.

    A rank that does not come waits as the others do, somewhere else.
    """
    folder = Path(context.arguments["folder"])
    if comes:
        (folder / f"{sequence}.{context.rank}").touch()
    deadline = time.monotonic() + 30
    while len(list(folder.glob(f"{sequence}.*"))) < context.world_size:
        if time.monotonic() > deadline:
            raise TimeoutError("nobody came")
        time.sleep(0.002)


def all_reduces(context: RankContext) -> dict[str, Any]:
    """The same stages with torch and gloo."""
    import torch
    import torch.distributed as dist

    context.progress.enter_stage("rendezvous")
    store = next(iter(_meet_at_store(context)))[0]
    context.progress.enter_stage("init")
    dist.init_process_group(
        "gloo",
        store=store,
        rank=context.rank,
        world_size=context.world_size,
        timeout=datetime.timedelta(seconds=context.operation_timeout_seconds),
    )
    for sequence in _enter_stages(context):
        values = torch.full((64,), float(context.rank + 1))
        mismatch = context.progress.pop_mismatch()
        if mismatch == "size":
            values = torch.zeros(128)
        elif mismatch == "dtype":
            values = values.to(torch.float64)
        op = "broadcast" if mismatch == "op" else "all_reduce"
        dtype = str(values.dtype).removeprefix("torch.")
        context.progress.before_operation(sequence, op, dtype, len(values), 0.001)
        if op == "broadcast":
            dist.broadcast(values, 0)
        else:
            dist.all_reduce(values)
        context.progress.after_operation(sequence)
    return {"sum": values[0].item()}


def _meet_at_store(context: RankContext) -> Iterator[Any]:
    from torch.distributed.rendezvous import rendezvous

    timeout = datetime.timedelta(seconds=context.rendezvous_timeout_seconds)
    return rendezvous(context.init_method, context.rank, context.world_size, timeout=timeout)


def _enter_stages(context: RankContext) -> Iterator[int]:
    """The sequence numbers of a run with one collective to begin with, and four per stage."""
    yield 0
    sequence = 1
    for stage in ("warmup", "measure", "verify"):
        context.progress.enter_stage(stage)
        for iteration in range(ITERATIONS):
            if stage == "measure":
                context.progress.before_iteration(iteration)
            yield sequence
            sequence += 1


def many_all_reduces(context: RankContext) -> dict[str, Any]:
    """Iterations with a little work before each all_reduce, every rank on a processor of its own."""
    import torch
    import torch.distributed as dist

    processors = sorted(os.sched_getaffinity(0))
    if context.arguments.get("pin"):
        os.sched_setaffinity(0, {processors[context.rank % len(processors)]})
    if context.arguments.get("ahead") and context.rank != context.arguments.get("crowded"):
        run_ahead_of_others()
    dist.init_process_group(
        "gloo", init_method=context.init_method, rank=context.rank, world_size=context.world_size
    )
    if context.rank == context.arguments.get("crowded"):
        crowd_out()
    context.progress.enter_stage("measure")
    values = torch.ones(8)
    for iteration in range(30):
        context.progress.before_iteration(iteration)
        easy = context.arguments.get("work_seconds", 0.015)
        work(easy if context.rank != context.arguments.get("hard_worker") else 4 * easy)
        context.progress.before_operation(iteration, "all_reduce", "float32", 8, 0.01)
        dist.all_reduce(values)
        context.progress.after_operation(iteration)
    return {}


def run_ahead_of_others() -> None:
    """Let no program of normal priority hold this rank up, where we may."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def crowd_out() -> None:
    """Have somebody else use this rank's processor all the time, and be less important than they are.

    The neighbour is in the rank's session: with autogroups, priorities count only within a session.
    """
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            pass
        os._exit(0)
    os.nice(5)  # a quarter of the processor, against one of nice 0


def work(cpu_seconds: float) -> None:
    """Use the processor for so long, however long that takes."""
    end = time.thread_time() + cpu_seconds
    while time.thread_time() < end:
        pass


def paced(context: RankContext) -> dict[str, Any]:
    """Two seconds of collectives, after every rank has said which process it is."""
    context.progress.enter_stage("measure")
    context.progress.emit({"pid": os.getpid()})
    for sequence in range(40):
        context.progress.before_operation(sequence, "barrier", "uint8", 1, 0.001)
        meet(context, sequence)
        context.progress.after_operation(sequence)
        time.sleep(0.05)
    return {}


def end_early_on_rank_1(context: RankContext) -> dict[str, Any]:
    """Rank 1 has nothing left to do; the others lose their connections to it."""
    context.progress.enter_stage("measure")
    if context.rank == 1:
        return {}
    time.sleep(0.3)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234")


def spin_on_rank_1(context: RankContext) -> dict[str, Any]:
    """Rank 1 computes for ever where the others wait for it."""
    context.progress.enter_stage("measure")
    while context.rank == 1:
        pass
    context.progress.before_operation(0, "all_reduce", "float32", 1024, 0.001)
    time.sleep(60)
    return {}


def raise_on_rank_1(context: RankContext) -> dict[str, Any]:
    """Rank 1 finds something wrong; the others wait for it and lose the connection."""
    context.progress.enter_stage("measure")
    if context.rank == 1:
        raise ValueError("the data is not there")
    time.sleep(0.05)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234")


def lose_connection(context: RankContext) -> dict[str, Any]:
    """Every rank loses its connection, and no rank is to blame."""
    context.progress.enter_stage("measure")
    raise RuntimeError(f"Connection reset by peer, as rank {context.rank} sees it")


def idle_on_rank_1(context: RankContext) -> dict[str, Any]:
    """Rank 1 never enters the collective that the others wait in."""
    context.progress.enter_stage("measure")
    if context.rank == 1:
        time.sleep(30)
    context.progress.before_operation(0, "all_reduce", "float32", 1024, 0.001)
    time.sleep(30)
    return {}


def stall(context: RankContext) -> dict[str, Any]:
    """Everybody is inside the collective, and nothing moves."""
    context.progress.enter_stage("measure")
    context.progress.before_operation(0, "all_reduce", "float32", 1024, 0.001)
    time.sleep(30)
    return {}


def stay_in_rendezvous(context: RankContext) -> dict[str, Any]:
    """Rank 2 does not get to the rendezvous; the others wait in it."""
    if context.rank != 2:
        context.progress.enter_stage("rendezvous")
    time.sleep(30)
    return {}


def write_everywhere(context: RankContext) -> dict[str, Any]:
    """Write to both standard streams, then end without a word to Python."""
    print("a line for standard output", flush=True)
    os.write(2, b"a line for standard error, as C libraries write it\n")
    os._exit(7)


def exit_early(context: RankContext) -> dict[str, Any]:
    """End with status 0 and no result."""
    os._exit(0)


def wait(context: RankContext) -> dict[str, Any]:
    """Say that the rank is there, then wait to be killed."""
    context.progress.enter_stage("measure")
    context.progress.emit({"pid": os.getpid()})
    time.sleep(60)
    return {}


def exhaust_memory(context: RankContext) -> dict[str, Any]:
    """Rank 1 takes more memory than there is; the others wait."""
    context.progress.enter_stage("measure")
    blocks = [bytearray(1 << 20) for _ in range(400)] if context.rank == 1 else []
    time.sleep(30)
    return {"blocks": len(blocks)}


def report_environment(context: RankContext) -> dict[str, Any]:
    """What libraries would read to tell the ranks apart."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
    return {name: os.environ.get(name) for name in names}


def report_pid(context: RankContext) -> dict[str, Any]:
    """Say that the rank is there, and end."""
    context.progress.enter_stage("measure")
    context.progress.emit({"pid": os.getpid()})
    return {}


def report_state(context: RankContext) -> dict[str, Any]:
    """What one test could leave to the next one in this process, and who this process's ancestors are."""
    import sys

    context.progress.enter_stage("measure")
    context.progress.emit({"pid": os.getpid()})
    torch = sys.modules.get("torch")
    template = find_process(os.getppid())
    return {
        "pid": os.getpid(),
        "template": os.getppid(),
        "server": None if template is None else template.parent_pid,
        "torch_at_start": torch is not None,
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name not in ("OMP_NUM_THREADS", "LINES", "COLUMNS")
        },
        "affinity": sorted(os.sched_getaffinity(0)),
        "folder": os.getcwd(),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "signals": [
            str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
        ],
        "modules": sorted(name for name in sys.modules if "planted" in name),
        "torch": None
        if torch is None
        else [
            str(torch.get_default_dtype()),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
            torch.backends.cudnn.benchmark,
            torch.initial_seed(),
            torch.rand(1).item(),
            torch.distributed.is_initialized(),
        ],
    }


def change_everything(context: RankContext) -> dict[str, Any]:
    """Leave this process as different as a test can, its process group open."""
    import socket
    import sys
    import threading

    import torch
    import torch.distributed as dist

    context.progress.enter_stage("measure")
    os.environ["GPUDIAG_PLANTED"] = "1"
    os.environ.pop("PATH", None)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.chdir("/")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: None)
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    planted.append(socket.socket())
    sys.modules["planted_module"] = sys
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(3)
    torch.backends.cudnn.benchmark = True
    dist.init_process_group(
        "gloo", init_method=context.init_method, rank=context.rank, world_size=context.world_size
    )
    dist.all_reduce(torch.zeros(1))
    return {}


planted: list[Any] = []
