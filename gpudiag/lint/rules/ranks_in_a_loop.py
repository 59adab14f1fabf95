"""Ranks that take turns, or that one process runs one after the other."""

import ast
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Loop, Step
from gpudiag.lint.values import RANKS
from gpudiag.lint.vocabulary import INIT


def _find(program: Program) -> Iterator[Mistake]:
    if program.uses_horovod or program.owner or not (program.opens_group or program.ddp_steps):
        return
    reported: set[ast.AST] = set()
    for step in (*program.backwards, *program.methods.get("step", []), *program.opens_group):
        for loop in step.where.loops:
            if not _is_over_ranks(program, loop) or loop in reported or step.where.spawned:
                continue
            if step.node in [s.node for s in program.opens_group] and _plays_ranks(program, step, loop):
                reported.add(loop)
                yield Mistake(
                    loop,
                    "one process runs all ranks one after the other: the first waits forever for the second",
                    "",
                    advice="start one process for each rank, by torchrun or mp.spawn, without this loop",
                )
            elif takes_turns(program, step, loop):
                reported.add(loop)
                yield Mistake(
                    loop,
                    "the ranks take turns: only one of them trains at a time",
                    "",
                    advice="leave the loop out: each rank does its own part, and all at the same time",
                )


def _is_over_ranks(program: Program, loop: Loop) -> bool:
    """Whether the loop goes over `range(world_size)`."""
    over = loop.iter if isinstance(loop, ast.For) else None
    if not isinstance(over, ast.Call) or getattr(over.func, "id", "") != "range" or not over.args:
        return False
    size = over.args[-1]
    return program.values.kinds(size) == {"world_size"} or "world_size" in ast.unparse(size).lower()


def takes_turns(program: Program, step: Step, loop: Loop) -> bool:
    """Whether the step is under `if rank == r`, with r from the loop."""
    counter = loop.target.id if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) else ""
    for guard in step.where.guards:
        test = guard.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            continue
        equal = isinstance(test.ops[0], ast.Eq) if guard.holds else isinstance(test.ops[0], ast.NotEq)
        sides = (test.left, test.comparators[0])
        for one, other in (sides, sides[::-1]):
            if (
                equal
                and isinstance(one, ast.Name)
                and one.id == counter
                and program.values.kinds(other) & RANKS
            ):
                return True
    return False


def _plays_ranks(program: Program, step: Step, loop: Loop) -> bool:
    """Whether the group is opened within the loop by a plain call, and not in a process of its own."""
    if program.names.qualify(step.node.func if isinstance(step.node, ast.Call) else None) != INIT:
        return False
    return isinstance(loop, ast.For) and not any(
        "Process" in ast.unparse(s) or "fork" in ast.unparse(s) for s in loop.body
    )


RULE = Rule(
    title="a loop over the ranks makes them work one after the other",
    why=(
        "Every rank runs the whole script by itself. A loop over ranks makes them wait for each other, or "
        "runs all ranks in one process, which waits forever for a second one."
    ),
    find=_find,
)
