"""An optimizer that holds the parameters from before FSDP sharded them."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import behind
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import Root, owner_of_parameters, roots_through_calls
from gpudiag.lint.vocabulary import FSDP1, FULLY_SHARD


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.uses_accelerate:
        return
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
    title="the optimizer is built before FSDP shards the model",
    why=(
        "Sharding puts new parameters in the place of the old ones. An optimizer that was built before "
        "keeps the old ones: it steps, but the model does not learn."
    ),
    find=_find,
)
