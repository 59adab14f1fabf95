"""The job that the agent gives the template process, and so the ranks; and what these need alike."""

import os
import platform
import sys
from dataclasses import dataclass
from typing import Any

import gpudiag
from gpudiag.loaded_cuda import loaded_nccl
from gpudiag.ranks.inject import Fault

# --- what the agent gives

# The longest message between an agent and its fork server.
MESSAGE_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class LocalRank:
    """One rank that runs on this machine, and its page on the position board."""

    rank: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class Job:
    """All that a rank needs to know before it loads its entry."""

    entry: str  # module:function
    arguments: dict[str, Any]
    ranks: tuple[LocalRank, ...]  # in the order of their pages
    world_size: int
    local_world_size: int
    init_method: str
    rendezvous_timeout_seconds: float
    operation_timeout_seconds: float
    preload: tuple[str, ...]  # modules to import once, before the ranks are forked
    try_preload: tuple[str, ...]  # the same, but a module may be absent: each rank finds out for itself
    faults: tuple[Fault, ...]
    run_directory: str
    agent_pid: int  # the template's parent: its agent, or the agent's fork server
    store_port: int | None = None  # where the ranks have their rendezvous, if that is by TCP


# --- what all ranks need alike

# Variables of collectives whose value is of one machine: names of its interfaces, files and ports.
_OF_ONE_MACHINE = (
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_HOSTID",
    "NCCL_CONF_FILE",
    "NCCL_TOPO_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_GRAPH_FILE",
    "NCCL_GRAPH_DUMP_FILE",
    "NCCL_DEBUG_FILE",
    "NCCL_RAS_ADDR",
    "NCCL_COMM_ID",
    "GLOO_SOCKET_IFNAME",
)
_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_")


def read_settings() -> dict[str, str]:
    """Versions by name, of torch only if imported, and the variables of collectives (`NCCL_ALGO`)."""
    settings = {"gpudiag": gpudiag.__version__, "Python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        settings["torch"] = str(torch.__version__)
        if torch.version.cuda is not None:
            settings["CUDA"] = str(torch.version.cuda)
            settings["NCCL"] = loaded_nccl(torch)[0]
    for name, value in os.environ.items():
        if name.startswith(_PREFIXES) and name not in _OF_ONE_MACHINE:
            settings[name] = value
    return settings
