"""A DataLoader with shuffle=True and a sampler."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, is_constant
from gpudiag.lint.rule import Rule
from gpudiag.lint.training import batch_sampler_of, sampler_of
from gpudiag.lint.vocabulary import LOADER


def _find(program: Program) -> Iterator[Mistake]:
    reported = set()
    for step in program.calls(LOADER):
        call = step.node
        if not isinstance(call, ast.Call) or call in reported:
            continue
        given = argument(call, 2, "shuffle")
        if given is None or not is_constant(given, True):
            continue
        for sampler in (sampler_of(call), batch_sampler_of(call)):
            kinds = program.values.kinds(sampler) if sampler is not None else frozenset()
            if not kinds & {"sampler", "other_sampler"} or "unknown" in kinds:
                continue
            if _excluded(program, step.where.guards, sampler):
                continue
            reported.add(call)
            edits = program.edit(given, "False")
            fix = program.edited_line(edits) if edits else with_replaced(program, given, "False")
            yield Mistake(
                call, "shuffle=True together with a sampler: DataLoader refuses the combination", fix, edits
            )


def _excluded(program: Program, guards: tuple[object, ...], sampler: ast.expr | None) -> bool:
    """Whether the loader is built only where the sampler is None."""
    return any(
        sampler is not None and ast.unparse(sampler) in ast.unparse(getattr(guard, "test", ast.Constant("")))
        for guard in guards
    )


RULE = Rule(
    title="a DataLoader has shuffle=True and a sampler",
    why=(
        "The two exclude each other: DataLoader raises a ValueError. A DistributedSampler shuffles by itself."
    ),
    find=_find,
    fixes=True,
)
