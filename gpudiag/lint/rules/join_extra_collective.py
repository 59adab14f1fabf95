"""A collective under Join to which ended ranks do not respond."""

import ast
from collections.abc import Iterator

from gpudiag.lint.collectives import collectives_of, is_of_a_part
from gpudiag.lint.program import Mistake, Program, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import GROUP_MAKERS

_JOIN = "torch.distributed.algorithms.join.Join"


def _find(program: Program) -> Iterator[Mistake]:
    reported: set[ast.AST] = set()
    for name, step in collectives_of(program):
        if name == "init_process_group" or name in GROUP_MAKERS or step.node in reported:
            continue
        if is_of_a_part(name, step) or step.where.handling:
            continue
        for item in step.where.withs:
            if not _joins(program, item) or not _loops_within(program, item, step.where.loops):
                continue
            reported.add(step.node)
            yield Mistake(
                step.node,
                (
                    f"{name} runs in every step under Join, and ranks that have no data left do not call "
                    "it: the others wait"
                ),
                "",
                advice=(
                    f"call {name} after the loop, or give Join throw_on_early_termination=True and end the "
                    "epoch on every rank"
                ),
            )
            break


def _joins(program: Program, item: ast.expr) -> bool:
    """Whether a context allows ranks to end at different times: Join, or the `join` of a DDP model."""
    if not isinstance(item, ast.Call) or is_constant(keyword(item, "enable"), False):
        return False
    if is_constant(keyword(item, "throw_on_early_termination"), True) or any(
        k.arg is None for k in item.keywords
    ):
        return False
    if program.names.qualify(item.func) == _JOIN:
        return True
    return (
        isinstance(item.func, ast.Attribute)
        and item.func.attr == "join"
        and "ddp" in program.values.kinds(item.func.value)
    )


def _loops_within(program: Program, item: ast.expr, loops: tuple[ast.stmt, ...]) -> bool:
    """Whether a step stands in a loop within the context."""
    around = program.names.statement_of(item)
    return any(around is outer for loop in loops for outer in program.names.ancestors(loop))


# Source: torch's tutorial and documentation of torch.distributed.algorithms.join.
RULE = Rule(
    title="a collective of one's own in each step under Join",
    why=(
        "Join answers the collectives of DDP for ranks whose data has ended, and no others. A further "
        "collective in each step is called by fewer and fewer ranks, so it meets the wrong call of an ended "
        "rank, or waits forever."
    ),
    find=_find,
)
