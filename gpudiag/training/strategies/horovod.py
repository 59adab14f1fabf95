"""Horovod for torch: an optimizer that averages the gradients, over Horovod's own connections."""

import os
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpudiag.training.group import TrainingGroup
from gpudiag.training.strategies.base import Setup, Strategy

_ADDRESS, _PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"


class HorovodStrategy(Strategy):
    """`hvd.DistributedOptimizer`; our process group only passes on Horovod's rendezvous."""

    framework = "horovod"
    fixed_order = False  # tensors that are ready at the same time are summed together

    def __init__(self, setup: Setup) -> None:
        """Join Horovod, bring every rank to the start of rank 0, wrap the optimizer."""
        import horovod.torch

        self._hvd: Any = horovod.torch
        self._server: Any = None
        if not self._hvd.is_initialized():
            self._server = _join(setup.group, self._hvd)
        super().__init__(setup)
        self.optimizer = self._hvd.DistributedOptimizer(
            self.optimizer, named_parameters=self.plain.named_parameters()
        )

    def _wrap(self, setup: Setup) -> nn.Module:
        if setup.broadcasts:
            with setup.group.announced("wrap"):
                self._hvd.broadcast_parameters(setup.model.state_dict(), root_rank=0)
        return setup.model

    @property
    def world_size(self) -> int:
        """The number of ranks that Horovod reports."""
        return int(self._hvd.size())

    @property
    def version(self) -> str:
        """Horovod's version, with torch's."""
        from horovod import __version__

        return f"horovod {__version__}, torch {torch.__version__}"

    def zero_gradients(self) -> None:
        """Clear the gradients of the last step; the wrapper takes no arguments."""
        self.optimizer.zero_grad()

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, and wait for the averaged gradients, as Horovod else does in `step`."""
        self.precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.optimizer.synchronize()
        self.precision.scaler.unscale_(self.optimizer)

    def step(self) -> bool:
        """Step the optimizer with the gradients that `backward` left; False if the step was skipped."""
        with self.optimizer.skip_synchronize():
            return super().step()

    def close(self) -> None:
        """Shut down Horovod and its rendezvous server."""
        self._hvd.shutdown()
        if self._server is not None:
            self._server.stop()
            self._server = None


def _join(group: TrainingGroup, hvd: Any) -> Any:
    """Horovod's rendezvous server, on rank 0, after every rank has joined; None on the others."""
    os.environ |= {
        "HOROVOD_RANK": str(group.rank),
        "HOROVOD_SIZE": str(group.world_size),
        "HOROVOD_LOCAL_RANK": str(group.local_rank),
        "HOROVOD_LOCAL_SIZE": str(group.local_world_size),
        "HOROVOD_CROSS_RANK": str(group.rank // group.local_world_size),
        "HOROVOD_CROSS_SIZE": str(-(-group.world_size // group.local_world_size)),
        "HOROVOD_HOSTNAME": socket.gethostname(),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        os.environ["HOROVOD_GLOO_IFACE"] = interface
    server: Any = None
    place: list[Any] = [None, None]
    if group.rank == 0:
        server, port = _start_server(group)
        place = [_own_address(group), port]
    with group.announced("broadcast"):
        dist.broadcast_object_list(place)
    os.environ[_ADDRESS], os.environ[_PORT] = str(place[0]), str(place[1])
    with group.announced("horovod_init"):
        hvd.init()
    return server


def _start_server(group: TrainingGroup) -> tuple[Any, int]:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(0)
    port = server.start()
    server.init(get_host_assignments(parse_hosts(f"localhost:{group.world_size}"), group.world_size))
    return server, int(port)


def _own_address(group: TrainingGroup) -> str:
    """Rank 0's address for the other ranks: loopback on one machine, else MASTER_ADDR or the host name."""
    if group.local_world_size == group.world_size:
        return "127.0.0.1"
    return os.environ.get("MASTER_ADDR", socket.gethostname())
