"""A DDP model with buffers that one rank alone calls."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, is_constant, keyword
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule
from gpudiag.lint.rules.batch_norm_apart import has_batch_norm
from gpudiag.lint.training import is_stage_3
from gpudiag.lint.vocabulary import FSDP1


def _find(program: Program) -> Iterator[Mistake]:
    has_buffers = has_batch_norm(program) or program.mentions("SyncBatchNorm", "register_buffer")
    if any(is_constant(keyword(step.node, "broadcast_buffers"), False) for step in program.ddp_steps):
        has_buffers = False
    sharded = {"fsdp1": "FSDP model"} | ({"engine": "engine under ZeRO-3"} if is_stage_3(program) else {})
    if program.owner or not (has_buffers or program.calls(FSDP1) or "engine" in sharded):
        return
    for step in program.steps:
        call = step.node
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute):
            continue
        if step.where.handling or program.which_ranks(step) is not Which.ONE:
            continue
        kinds = program.values.kinds(call.func)
        if len(kinds) == 1 and kinds <= sharded.keys():
            (kind,) = kinds
            message = f"one rank alone calls the {sharded[kind]}, whose layers it gathers from all ranks"
            yield Mistake(call, message, "", advice="let every rank call the model, each with its share")
            return
        if has_buffers and is_wrapped(program, call.func):
            yield Mistake(
                call,
                (
                    "one rank alone calls the DDP model, which broadcasts its buffers first and waits for "
                    "the others"
                ),
                with_replaced(program, call.func, f"{ast.unparse(call.func)}.module"),
            )
            return


def is_wrapped(program: Program, node: ast.expr) -> bool:
    """Whether a name holds a DDP model wherever there are ranks, also if it is wrapped only then."""
    kinds = program.values.kinds(node)
    if kinds == {"ddp"}:
        return True
    if "ddp" not in kinds or not isinstance(node, ast.Name | ast.Attribute):
        return False
    makers = [binding.value for binding in program.values.reaching(node)]
    wrapped = [made for made in makers if made is not None and "ddp" in program.values.kinds(made)]
    return bool(wrapped) and all(
        isinstance(made, ast.Call)
        and bool(made.args)
        and ast.unparse(made.args[0]).split(".to(")[0] == ast.unparse(node)
        for made in wrapped
    )


RULE = Rule(
    title="a DDP model with buffers is called on one rank only",
    why=(
        "DDP broadcasts buffers, such as the means of BatchNorm, at the start of each forward, also without "
        "gradients. If rank 0 alone calls it, rank 0 waits in a broadcast that the others do not call. "
        "Evaluate `model.module` there."
    ),
    find=_find,
)
