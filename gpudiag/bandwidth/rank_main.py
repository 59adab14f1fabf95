"""The entry point of a rank that runs active tests."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gpudiag.bandwidth.bench import Bench, LockStep
from gpudiag.bandwidth.compute import measure_determinism, measure_matmul, measure_sustained
from gpudiag.bandwidth.copies import (
    measure_device_to_host,
    measure_host_to_device,
    measure_memory_copy,
    measure_peer_copy,
)
from gpudiag.bandwidth.patterns import measure_memory_patterns
from gpudiag.model.active import (
    DETERMINISM,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    MATMUL,
    MEMORY_COPY,
    MEMORY_PATTERNS,
    PEER_COPY,
    SUSTAINED,
    ActivePlan,
)
from gpudiag.model.codec import decode
from gpudiag.model.host_state import parse_processor_list
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.ranks.rank.context import RankContext
from gpudiag.ranks.rank.device import read_device_uuid
from gpudiag.ranks.stages import MEASURE, WARMUP

_MEASURE: Mapping[str, Callable[[Bench], None]] = {
    MEMORY_COPY: measure_memory_copy,
    HOST_TO_DEVICE: measure_host_to_device,
    DEVICE_TO_HOST: measure_device_to_host,
    MATMUL: measure_matmul,
    PEER_COPY: measure_peer_copy,
    DETERMINISM: measure_determinism,
    MEMORY_PATTERNS: measure_memory_patterns,
    SUSTAINED: measure_sustained,
}


def bind_to_node(node: int | None, root: Path = Path("/")) -> Reading[int]:
    """The NUMA node to whose processors this process is now bound; Missing, with the reason, if it is not."""
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


def run(context: RankContext) -> Mapping[str, Any]:
    """The version of torch, for an encoded ActivePlan in `context.arguments`; measurements are emitted."""
    plan = decode(ActivePlan, context.arguments)
    # First of all, so that the threads of the process group and of CUDA start there too.
    node = bind_to_node(plan.numa_nodes[context.local_rank]) if plan.numa_nodes else NOT_ASKED
    group = LockStep(context)
    context.progress.enter_stage(WARMUP)
    device = torch.device("cuda", context.local_rank) if plan.device_kind == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    bench = Bench(group, plan, device, read_device_uuid(device), node)
    bench.step("context", lambda: torch.zeros(1, device=device))
    context.progress.enter_stage(MEASURE)
    for test in plan.tests:
        _MEASURE[test](bench)
        context.progress.emit({"kind": "done", "test": test})
    return {"torch_version": str(torch.__version__)}
