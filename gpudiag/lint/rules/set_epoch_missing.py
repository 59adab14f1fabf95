"""A DistributedSampler that shuffles in the same order in every epoch."""

import ast
from collections.abc import Iterator
from dataclasses import replace

from gpudiag.lint.corrections import first_in
from gpudiag.lint.program import Mistake, Program, is_constant
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Loop, Step
from gpudiag.lint.training import (
    batch_sampler_of,
    loaders_of,
    repeats,
    sampler_of,
    samples_by_rank,
    shuffles,
    training_loaders,
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.uses_accelerate:
        return
    seen: set[ast.AST] = set()
    calls = program.methods.get("set_epoch", [])
    for loader, loop, step in training_loaders(program):
        samplers = samples_by_rank(program, sampler_of(loader))
        if not samplers and batch_sampler_of(loader) is not None:
            samplers = _inner_samplers(program, batch_sampler_of(loader))
        if not samplers or not all(shuffles(sampler) for sampler in samplers):
            continue
        epochs = _loops_around(step, loop)
        around = [outer for outer in epochs if repeats(program, outer)]
        if not around or samplers[0] in seen:
            continue
        seen.add(samplers[0])
        if not calls and not program.mentions("set_epoch"):
            yield _missing(program, loader, samplers[0], around[-1])
        elif calls and all(_is_stuck(program, call, epochs) for call in calls):
            yield _stuck(program, calls[0], around[-1])
    if not calls and not program.mentions("set_epoch") and program.backwards:
        for loader, loop in _loaders_drawn_from(program):
            samplers = samples_by_rank(program, sampler_of(loader))
            if samplers and all(map(shuffles, samplers)) and samplers[0] not in seen:
                seen.add(samplers[0])
                yield _missing(program, loader, samplers[0], loop)
    if not seen:
        yield from _find_stuck(program, calls)


def _loaders_drawn_from(program: Program) -> Iterator[tuple[ast.Call, Loop]]:
    """Loaders that an endless generator reads, each with the loop that restarts it."""
    for step in program.steps:
        loop = step.node
        if not isinstance(loop, ast.For) or not step.where.loops or step.where.stack[-1:] == ():
            continue
        again = step.where.loops[-1]
        home = program.names.function_around(loop)
        if not isinstance(again, ast.While) or program.names.function_around(again) is not home:
            continue
        if any(isinstance(part, ast.Yield) for part in ast.walk(loop)):
            for loader in loaders_of(program, loop):
                yield loader, again


def _find_stuck(program: Program, calls: list[Step]) -> Iterator[Mistake]:
    """Calls of set_epoch on a loader from elsewhere, in the loop that trains."""
    trained = {loop for step in program.backwards for loop in step.where.loops}
    epochs = [
        [loop for loop in call.where.loops if loop in trained and repeats(program, loop)] for call in calls
    ]
    if calls and all(
        around and _is_stuck(program, call, around) for call, around in zip(calls, epochs, strict=True)
    ):
        yield _stuck(program, calls[0], epochs[0][-1])


def _inner_samplers(program: Program, node: ast.expr | None) -> list[ast.Call]:
    found = []
    for value in program.values.of(node) if node is not None else ():
        if isinstance(value.node, ast.Call) and value.node.args:
            found += samples_by_rank(program, value.node.args[0])
    return found


def _loops_around(step: Step, loop: Loop) -> list[Loop]:
    loops = list(step.where.loops)
    return loops[: loops.index(loop)]


def _is_stuck(program: Program, call: Step, epochs: list[Loop]) -> bool:
    """Whether a call of set_epoch passes the same number each time: a literal, or a constant name."""
    if not isinstance(call.node, ast.Call) or not call.node.args:
        return False
    given = call.node.args[0]
    inside = [loop for loop in call.where.loops if loop in epochs]
    if not inside:
        # Before the loop, in the function that has the loop: the first epoch's number for all.
        home = program.names.function_around(call.node)
        return (
            bool(epochs)
            and any(program.names.function_around(loop) is home for loop in epochs)
            and not call.where.loops
        )
    if is_constant(given) or isinstance(given, ast.Constant):
        return True
    if not isinstance(given, ast.Name):
        return False
    bindings = program.names.bindings_of(given)
    fixed = [b for b in bindings if isinstance(b.value, ast.Constant) and not b.added and not b.path]
    return (
        bool(bindings)
        and len(bindings) == len(fixed) == 1
        and not any(b.node in set(program.names.ancestors(call.node)) for b in bindings)
    )


def _epoch_of(loop: Loop) -> str:
    return (
        ast.unparse(loop.target)
        if isinstance(loop, ast.For | ast.AsyncFor)
        and isinstance(loop.target, ast.Name)
        and loop.target.id != "_"
        else "epoch"
    )


def _missing(program: Program, loader: ast.Call, sampler: ast.Call, loop: Loop) -> Mistake:
    name = _name_of(program, sampler)
    receiver = name or f"{_name_of(program, loader) or 'loader'}.sampler"
    return Mistake(
        sampler,
        "set_epoch is never called: every epoch reads the samples in the same order",
        f"{receiver}.set_epoch({_epoch_of(loop)})",
        place=first_in(program, loop),
    )


def _name_of(program: Program, call: ast.Call) -> str | None:
    """The name to which the script assigns the result of a call."""
    statement = program.names.statement_of(call)
    if isinstance(statement, ast.Assign) and any(call is part for part in ast.walk(statement.value)):
        held = statement.value
        if held is call or isinstance(held, ast.IfExp):
            return ast.unparse(statement.targets[0])
    return None


def _stuck(program: Program, call: Step, loop: Loop) -> Mistake:
    node = call.node
    receiver = (
        ast.unparse(node.func.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        else "sampler"
    )
    return Mistake(
        node,
        "set_epoch gets the same number in every epoch, so the order repeats",
        f"{receiver}.set_epoch({_epoch_of(loop)})",
        place=replace(first_in(program, loop), moves=True),
    )


RULE = Rule(
    title="set_epoch is never called on a DistributedSampler that shuffles",
    why=(
        "The sampler draws its order from its seed and the epoch. Without set_epoch every epoch is read in "
        "the same order, and training gets worse without an error."
    ),
    find=_find,
)
