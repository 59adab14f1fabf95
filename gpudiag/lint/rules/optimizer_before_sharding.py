"""An optimizer that holds parameters from before FSDP sharded them, or from before a layer was replaced."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import behind
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import (
    Root,
    makes_layers,
    optimizer_calls,
    owner_of_parameters,
    roots_through_calls,
)
from gpudiag.lint.vocabulary import FSDP1, FULLY_SHARD


def _find(program: Program) -> Iterator[Mistake]:
    if not program.owner and not program.uses_accelerate:
        yield from _find_sharded(program)
        yield from _find_replaced(program)


def _find_replaced(program: Program) -> Iterator[Mistake]:
    """Layers that are replaced between the optimizer and DDP: the optimizer holds the old ones."""
    if program.mentions("add_param_group"):
        return
    order, around = program.names.order, program.names.function_around
    built = [
        (step.node, ast.unparse(owner))
        for step in optimizer_calls(program)
        if (owner := owner_of_parameters(step.node))
    ]
    wrapped = [step.node for step in program.ddp_steps]
    for node in program.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            continue
        if not makes_layers(program, node.value):
            continue
        text = ast.unparse(node.targets[0])
        made = [
            call
            for call, owner in built
            if text.startswith((f"{owner}.", f"{owner}[")) and around(call) is around(node)
        ]
        is_before = any(around(call) is around(node) and order[call] > order[node] for call in wrapped)
        if is_before and made and all(order[call] < order[node] for call in made):
            line = program.line_at(getattr(made[-1], "lineno", 1)).number
            message = (
                f"the layer is replaced after the optimizer was built (line {line}): it is never trained"
            )
            yield Mistake(
                node, message, "", advice="replace the layer first, and build the optimizer afterwards"
            )


def _find_sharded(program: Program) -> Iterator[Mistake]:
    built: list[tuple[set[Root], Step]] = []
    sharded_at: dict[ast.AST, Step] = {}
    for step in program.steps:
        if not isinstance(step.node, ast.Call):
            continue
        name = program.names.qualify(step.node.func) or ""
        if name.startswith("torch.optim.") and program.values.is_only(step.node, "optimizer"):
            built.append((roots_through_calls(program, step, owner_of_parameters(step.node)), step))
        elif name in (FULLY_SHARD, FSDP1):
            if name == FSDP1 and is_constant(keyword(step.node, "use_orig_params"), True):
                continue
            sharded = roots_through_calls(program, step, argument(step.node, 0, "module"))
            for roots, optimizer in built:
                if roots & sharded and _same_run(optimizer, step):
                    sharded_at[optimizer.node] = step
    for node, step in sharded_at.items():
        name = (program.names.qualify(getattr(step.node, "func", None)) or "").rsplit(".", 1)[-1]
        message = f"the optimizer is built before {name} shards the model, and keeps the old parameters"
        place = behind(program, step.node, moves=node)
        if place is not None:
            yield Mistake(node, message, program.statement_text(node), place=place)
        else:
            line = program.line_at(getattr(step.node, "lineno", 1)).number
            yield Mistake(node, message, "", advice=f"build the optimizer after {name} in line {line}")


def _same_run(first: Step, later: Step) -> bool:
    """Whether every path to the later step passes the first: no condition separates them."""
    return first.where.entry is later.where.entry and not any(
        ast.unparse(a.test) == ast.unparse(b.test) and a.holds is not b.holds
        for a in first.where.guards
        for b in later.where.guards
    )


RULE = Rule(
    title="the optimizer is built before FSDP shards the model, or before a layer is replaced",
    why=(
        "Sharding puts new parameters in the place of the old ones, and so does a new layer. An optimizer "
        "that was built before keeps the old ones: it steps, but these parameters do not learn."
    ),
    find=_find,
)
