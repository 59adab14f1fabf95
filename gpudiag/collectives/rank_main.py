"""The entry point of a rank of `gpudiag nccl-test`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpudiag.collectives.cases import Sweep
from gpudiag.collectives.process_group import join_process_group
from gpudiag.collectives.results import RankFacts
from gpudiag.collectives.sweep import SweepRunner
from gpudiag.loaded_cuda import built_nccl, loaded_nccl
from gpudiag.model.codec import decode, encode
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.ranks.rank.context import RankContext
from gpudiag.ranks.rank.device import read_device_uuid


def run(context: RankContext) -> Mapping[str, Any]:
    """The rank's facts; its measurements have gone to the agent case by case, as they were made.

    `context.arguments` is an encoded Sweep.
    """
    sweep = decode(Sweep, context.arguments)
    group = join_process_group(context, sweep.backend)
    facts = encode(_read_facts(group.device))
    context.progress.emit({"kind": "facts", **facts})
    SweepRunner(group, sweep, spans_hosts=context.local_world_size < context.world_size).run()
    group.barrier()  # a rank that leaves first takes with it what it has not sent yet
    return dict(facts)


def _read_facts(device: torch.device) -> RankFacts:
    return RankFacts(
        torch_version=str(torch.__version__),
        nccl_version=_nccl_version(lambda: loaded_nccl(torch)[0]),
        nccl_built_version=_nccl_version(lambda: built_nccl(torch)),
        device_uuid=read_device_uuid(device),
    )


def _nccl_version(read: Callable[[], str]) -> Reading[str]:
    if not torch.distributed.is_nccl_available():
        return Missing(MissingReason.SOURCE_ABSENT, "this build of torch has no NCCL")
    return read()
