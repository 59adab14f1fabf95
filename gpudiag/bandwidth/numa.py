"""Bind a rank to the processors beside its GPU, so that the memory that it pins lies there too.

Memory is taken from the node of the thread that first touches it. A rank that started on the other socket
would measure the link between the sockets, and not its GPU's.
"""

import os
from pathlib import Path

from gpudiag.model.host_state import parse_processor_list
from gpudiag.model.reading import Missing, MissingReason, Reading


def bind_to_node(node: int | None, root: Path = Path("/")) -> Reading[int]:
    """The NUMA node to whose processors this process is now bound; missing, with the reason, where it is not."""
    if node is None:
        return Missing(MissingReason.NOT_SUPPORTED, "the GPU's NUMA node is not known")
    listed = root / f"sys/devices/system/node/node{node}/cpulist"
    try:
        near = parse_processor_list(listed.read_text())
        allowed = near & os.sched_getaffinity(0)
        if not allowed:
            return Missing(
                MissingReason.NO_PERMISSION, f"this process may use no processor of NUMA node {node}"
            )
        os.sched_setaffinity(0, allowed)
    except OSError as error:
        return Missing(MissingReason.ERROR, f"not bound to NUMA node {node}: {error.strerror}")
    return node
