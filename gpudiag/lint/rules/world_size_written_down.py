"""A process group of one rank, or one in which every process is started as rank 0."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, is_constant
from gpudiag.lint.rule import Rule


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or not program.ddp_steps or program.uses_deepspeed:
        return
    for step in program.opens_group:
        size, rank = argument(step.node, 3, "world_size"), argument(step.node, 4, "rank")
        if (
            step.where.handling
            or len(program.opens_group) > 1
            or any("__name__" not in ast.unparse(g.test) for g in step.where.guards)
        ):
            continue
        if is_constant(size, 1):
            yield Mistake(
                step.node,
                "world_size is 1: each process forms its own group, and nothing is averaged",
                _fix(program, step.node),
            )
        elif is_constant(rank, 0) and size is not None:
            yield Mistake(step.node, "every process is started as rank 0", _fix(program, step.node))


def _fix(program: Program, call: ast.AST) -> str:
    if not isinstance(call, ast.Call):
        return ""
    keywords = [k for k in call.keywords if k.arg not in ("rank", "world_size")]
    return (
        with_replaced(program, call, ast.unparse(ast.Call(call.func, call.args[:2], keywords)))
        + "  # rank and size come from torchrun"
    )


RULE = Rule(
    title="the number of ranks, or the rank, is written into the script",
    why=(
        "With world_size=1 every process forms its own group and trains by itself, without an error. With "
        "rank=0 in all of them the second process cannot open the store, or all wait for rank 1."
    ),
    find=_find,
)
