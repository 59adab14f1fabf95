"""jobs/training.py, with a server in rank 0 that answers as NCCL's RAS does: how many collectives each rank
has launched.

The stand-in's NCCL has no RAS. Each rank keeps its counts in FOLDER/launched.rankN, before the launch, as
NCCL counts; DDP's all-reduce of the gradients counts with `backward`. NCCL_RAS_ADDR says where the server
listens.
"""

import json
import os
import runpy
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.unit.probe.ras_server import FakeCommunicator, FakeRank, as_json

FOLDER = Path(sys.argv[2])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
_launched: Counter[str] = Counter()


# A frame of this call is in the stack of whoever waits: it must be taken for a library's, as NCCL's own count
# is.
_CALL = """
def wrap(function, count):
    def launch(*arguments, **named):
        count()
        return function(*arguments, **named)
    return launch
"""
_names: dict[str, Any] = {}
exec(compile(_CALL, "/opt/site-packages/nccl_counts.py", "exec"), _names)


def counted(function: Callable[..., Any], operation: str) -> Callable[..., Any]:
    """The function, counted as a launch of that operation."""

    def count() -> None:
        _launched[operation] += 1
        made = FOLDER / f"launched.rank{RANK}.new"
        made.write_text(json.dumps({"pid": os.getpid(), "counts": _launched}))
        made.replace(FOLDER / f"launched.rank{RANK}")

    wrapped: Callable[..., Any] = _names["wrap"](function, count)
    return wrapped


def answer() -> bytes:
    """What RAS says of the one communicator now."""
    told = [json.loads((FOLDER / f"launched.rank{rank}").read_text()) for rank in range(SIZE)]
    return as_json([FakeCommunicator([FakeRank(one["counts"], pid=one["pid"]) for one in told])])


def serve(server: socket.socket) -> None:
    """Answer one client after the other: each command with OK, the last with the counts."""
    while True:
        client, _ = server.accept()
        with client, client.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"CLIENT PROTOCOL"):
                    client.sendall(b"SERVER PROTOCOL 2\n")
                elif b"STATUS" in line:
                    client.sendall(answer())
                    break
                else:
                    client.sendall(b"OK\n")


def main() -> None:
    """Count, serve, and train."""
    dist.all_reduce = counted(dist.all_reduce, "AllReduce")
    dist.barrier = counted(dist.barrier, "AllReduce")
    dist.broadcast = counted(dist.broadcast, "Broadcast")
    torch.Tensor.backward = counted(torch.Tensor.backward, "AllReduce")  # type: ignore[method-assign]
    if RANK == 0:
        host, _, port = os.environ["NCCL_RAS_ADDR"].rpartition(":")
        server = socket.create_server((host, int(port)), family=socket.AF_INET)
        threading.Thread(target=serve, args=(server,), daemon=True).start()
    runpy.run_module("tests.cuda_stand_in.jobs.training", run_name="__main__")


main()
