"""The DeepSpeed engine's step under a count that the script keeps itself."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import moved, out_of
from gpudiag.lint.origins import behind
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule


def _find(program: Program) -> Iterator[Mistake]:
    reported = set()
    for step in program.methods.get("step", []):
        call = step.node
        if call in reported or program.values.kinds(step.receiver) != {"engine"} or not step.where.loops:
            continue
        backward = [
            b
            for b in program.backwards
            if b.where.loops == step.where.loops and program.values.kinds(b.receiver) == {"engine"}
        ]
        shared = {g.test for b in backward for g in b.where.guards}
        gates = [
            g
            for g in step.where.guards
            if g.test not in shared
            and any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in behind(program, g.test))
        ]
        opposite = {(g.test, not g.holds) for g in gates}
        others = [
            o for o in program.methods["step"] if any((g.test, g.holds) in opposite for g in o.where.guards)
        ]
        if backward and gates and not others:
            reported.add(call)
            message = (
                "engine.step() is called in some steps only; the engine counts gradient accumulation by "
                "itself"
            )
            yield moved(
                program,
                call,
                message,
                out_of(program, call, gates[-1]),
                "call it after every backward, without the condition",
            )


RULE = Rule(
    title="engine.step() runs only in some steps, by a separate count",
    why=(
        "The engine counts micro-batches and steps the optimizer at the end of an accumulation, by its "
        "configuration. With a second count on top it steps far too rarely."
    ),
    find=_find,
)
