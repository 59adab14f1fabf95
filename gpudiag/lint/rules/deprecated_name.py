"""A name that torch deprecates."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import DDP_CLASSES, FSDP1
from gpudiag.model.lint import Severity

# Not all_gather_into_tensor and reduce_scatter_tensor: torch 2.13 and 2.14 warn of them, 2.15 no longer does.
INSTEAD = {
    FSDP1: "torch.distributed.fsdp.fully_shard (FSDP2)",
    "torch.distributed._all_gather_base": "torch.distributed.all_gather_into_tensor",
    "torch.distributed._reduce_scatter_base": "torch.distributed.reduce_scatter_tensor",
    "torch.distributed.all_reduce_coalesced": "torch.distributed.all_reduce on each tensor",
    "torch.distributed.all_gather_coalesced": "torch.distributed.all_gather on each tensor",
    "torch.distributed.reduce_op": "torch.distributed.ReduceOp",
    "torch.nn.parallel.DistributedDataParallelCPU": "torch.nn.parallel.DistributedDataParallel",
}


def _find(program: Program) -> Iterator[Mistake]:
    reported = set()
    for node in program.nodes:
        if not isinstance(node, ast.Attribute | ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        name = program.names.qualify(node)
        if name not in INSTEAD or name in reported:
            continue
        parent = program.names.parents.get(node)
        if name == FSDP1 and not (isinstance(parent, ast.Call) and parent.func is node):
            continue
        reported.add(name)
        instead = INSTEAD[name]
        short = name.rsplit(".", 1)[1]
        message = f"{short} is deprecated; use {instead}"
        if name == FSDP1:
            yield Mistake(
                node,
                message,
                "",
                advice=(
                    "call fully_shard(block) for each block, then fully_shard(model), and use the model "
                    "itself"
                ),
            )
        elif " " in instead:
            yield Mistake(node, message, "", advice=f"call {instead}")
        else:
            called = instead.rsplit(".", 1)[1]
            text = f"{ast.unparse(node.value)}.{called}" if isinstance(node, ast.Attribute) else called
            yield Mistake(node, message, with_replaced(program, node, text))
    yield from _find_scripted(program)


def _find_scripted(program: Program) -> Iterator[Mistake]:
    """TorchScript around DDP, in either order."""
    for step in program.calls("torch.jit.script", "torch.jit.trace"):
        if "ddp" in program.values.kinds(argument(step.node, 0, "obj")):
            yield Mistake(
                step.node,
                "TorchScript around DDP is deprecated; use torch.compile",
                with_replaced(program, step.node, f"torch.compile({ast.unparse(step.node.args[0])})")
                if isinstance(step.node, ast.Call) and step.node.args
                else "",
            )
    for step in program.calls(*sorted(DDP_CLASSES)):
        inner = argument(step.node, 0, "module")
        makers = (
            [b.value for b in program.values.reaching(inner)]
            if isinstance(inner, ast.Name | ast.Attribute)
            else [inner]
        )
        if any(
            isinstance(m, ast.Call)
            and program.names.qualify(m.func) in ("torch.jit.script", "torch.jit.trace")
            for m in makers
        ):
            yield Mistake(
                step.node,
                "DDP around a TorchScript module is deprecated; use torch.compile",
                "",
                advice="leave TorchScript out, and compile the wrapped model by torch.compile",
            )


RULE = Rule(
    severity=Severity.NOTE,
    title="a class or function that torch deprecates",
    why=(
        "It still works, with a warning, and will be removed: FSDP1, the collectives into one tensor under "
        "their private names, reduce_op, TorchScript around DDP."
    ),
    find=_find,
)
