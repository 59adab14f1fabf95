"""What the ranks of one job need alike, as the process that starts a machine's ranks has it."""

import os
import platform
import sys

import gpudiag

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
    """Versions by name (`torch`), and the variables of collectives by theirs (`NCCL_ALGO`).

    torch's are there only where it was imported.
    """
    settings = {"gpudiag": gpudiag.__version__, "Python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        settings["torch"] = str(torch.__version__)
        if torch.version.cuda is not None:
            settings["CUDA"] = str(torch.version.cuda)
            settings["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    for name, value in os.environ.items():
        if name.startswith(_PREFIXES) and name not in _OF_ONE_MACHINE:
            settings[name] = value
    return settings
