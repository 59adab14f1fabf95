"""A loop that each rank leaves when its own signal comes."""

import ast
from collections.abc import Iterator

from gpudiag.lint.collectives import collectives_of
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step

_AGREES = tuple(
    """
    broadcast broadcast_object_list all_reduce all_gather all_gather_object
    reduce_boolean_decision all_gather_into_tensor
    """.split()
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or not (program.ddp_steps or program.opens_group):
        return
    flags = _flags_of_handlers(program)
    if not flags:
        return
    meeting = {loop for name, step in collectives_of(program) if name in _AGREES for loop in step.where.loops}
    reported: set[ast.AST] = set()
    for step in program.steps:
        if not isinstance(step.node, ast.Break | ast.Return) or step.node in reported or not step.where.loops:
            continue
        guard = next((g for g in step.where.guards if g.holds and _reads(g.test, flags)), None)
        loop = step.where.loops[-1]
        if guard is None or loop not in program.names.ancestors(guard.test):
            continue
        if not _trains(program, loop) or meeting & set(step.where.loops):
            continue
        reported.add(step.node)
        yield Mistake(
            step.node,
            (
                "each rank leaves the loop when its own signal has come: ranks that are one step further "
                "wait for it"
            ),
            "",
            advice=(
                "let the ranks agree in each step: dist.all_reduce of the flag with op=dist.ReduceOp.MAX, "
                "then every rank leaves"
            ),
        )


def _flags_of_handlers(program: Program) -> set[str]:
    """What the handlers of signals set: `stop`, `self.stop`, `state["stop"]`, and events."""
    flags: set[str] = set()
    for step in program.calls("signal.signal"):
        call = step.node
        given = call.args[1] if isinstance(call, ast.Call) and len(call.args) > 1 else None
        function = program.values.function_of(given)
        for node in ast.walk(function) if function is not None else ():
            if isinstance(node, ast.Assign):
                flags |= {ast.unparse(target) for target in node.targets}
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "set"
            ):
                flags.add(ast.unparse(node.func.value))
    return flags


def _reads(test: ast.expr, flags: set[str]) -> bool:
    return any(
        ast.unparse(part) in flags
        for part in ast.walk(test)
        if isinstance(part, ast.Name | ast.Attribute | ast.Subscript)
    )


def _trains(program: Program, loop: ast.stmt) -> bool:
    """Whether the ranks wait for one another in the loop: a backward pass, or another collective."""
    inside: list[Step] = [step for _, step in collectives_of(program)] + program.backwards
    return any(loop in step.where.loops for step in inside)


# Source: torch's documentation of collectives, Slurm's of sbatch --signal.
RULE = Rule(
    title="each rank leaves the training loop by its own signal",
    why=(
        "A scheduler's signal reaches the ranks at different moments. A rank that sees it before its next "
        "step leaves, and the others wait for it in a collective until the watchdog or the scheduler kills "
        "them: the checkpoint that the signal was for is lost."
    ),
    find=_find,
)
