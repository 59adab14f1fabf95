"""A script that opens a process group and trains on each rank by itself."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import in_front_of
from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.rule import Rule
from gpudiag.lint.rules.ranks_in_a_loop import takes_turns
from gpudiag.lint.training import optimizer_calls, owner_of_parameters

_EXCHANGES = tuple(
    r"""
    DistributedDataParallel DDP FullyShardedDataParallel FSDP fully_shard replicate
    parallelize_module distribute_tensor distribute_module DistributedOptimizer
    ZeroRedundancyOptimizer rpc PipelineStage Pipe register_hook all_gather\w*
    reduce_scatter\w* send recv isend irecv all_to_all\w* gather scatter all_reduce_coalesced
    average_\w+ sync_\w+ \w*parallel\w* gradient\w* DTensor context_parallel
    PostLocalSGDOptimizer shard_map xm DataParallel averaging\w*
    """.split()
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.uses_accelerate or program.uses_deepspeed or program.uses_horovod:
        return
    if not program.opens_group or program.mentions(*_EXCHANGES) or _exchanges_by_hand(program):
        return
    for step in optimizer_calls(program):
        owner = owner_of_parameters(step.node)
        if owner is None or _kinds(program, owner) != {"module"}:
            continue
        if not program.training_loops() or program.which_ranks(step) is not None:
            continue
        loops = program.training_loops()
        if any(
            program.which_ranks(back) is not None and not takes_turns(program, back, outer)
            for back, _ in loops
            for outer in back.where.loops[:1]
        ):
            continue
        name = ast.unparse(owner)
        yield Mistake(
            step.node,
            f"{name} is never wrapped in DDP: each rank trains its own model",
            f"{name} = DistributedDataParallel({name})",
            place=in_front_of(program, step.node),
        )
        return


def _kinds(program: Program, owner: ast.expr) -> frozenset[str]:
    """What the optimizer's model is, also where it is built only later."""
    kinds = program.values.kinds(owner)
    if kinds in (frozenset(), {"unknown"}) and isinstance(owner, ast.Name):
        values = [
            program.values.of(b.value, b.path)
            for b in program.names.bindings_of(owner)
            if b.value is not None
        ]
        return frozenset(value.kind for found in values for value in found)
    return kinds


def _exchanges_by_hand(program: Program) -> bool:
    """Whether gradients or parameters go through a collective that could take them."""
    for name in ("all_reduce", "reduce", "broadcast"):
        for step in program.calls(f"torch.distributed.{name}"):
            given = argument(step.node, 0, "tensor")
            kinds = program.values.kinds(given)
            text = ast.unparse(given) if given is not None else ""
            if kinds <= {"state_dict", "parameters", "module", "number", "int", "float"} and kinds:
                continue
            if name == "broadcast" and kinds & {"parameter"}:
                continue
            if any(
                word in text.lower()
                for word in ("loss", "acc", "count", "correct", "total", "metric", "stop", "flag")
            ):
                continue
            return True
    return False


RULE = Rule(
    title="the process group is opened, and the model is never wrapped",
    why=(
        "Opening a process group averages nothing. Without DDP, FSDP or an all_reduce of the gradients each "
        "rank trains its own model, and only one of them is saved."
    ),
    find=_find,
)
