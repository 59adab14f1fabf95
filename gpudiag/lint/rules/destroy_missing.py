"""A process group that is never closed."""

from collections.abc import Iterator

from gpudiag.lint.corrections import at_end
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.model.lint import Severity


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.uses_accelerate or program.uses_deepspeed or not program.opens_group:
        return
    if program.mentions(
        "destroy_process_group", "cleanup\\w*", "destroy\\w*", "teardown\\w*", "shutdown", "finalize"
    ):
        return
    first = next((step for step in program.opens_group if step.where.entry is None), None)
    if first is None or not (program.training_loops() or program.ddp_steps):
        return
    yield Mistake(
        first.node,
        "the process group is never closed",
        "dist.destroy_process_group()",
        place=at_end(program, first.node),
    )


RULE = Rule(
    severity=Severity.NOTE,
    title="the process group is never closed",
    why=(
        "torch warns at the end, and a rank that exits while others still send can make them hang or abort. "
        "Well-known projects do without it."
    ),
    find=_find,
)
