"""A number read from the GPU in every step."""

from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.lint.training import training_loaders
from gpudiag.model.lint import Severity


def _find(program: Program) -> Iterator[Mistake]:
    if not (program.opens_group or program.ddp_steps) or program.owner:
        return
    steps = {(loop, step.node): step for _, loop, step in training_loaders(program)}
    for (loop, _), backward in steps.items():
        for step in program.methods.get("item", []):
            same = step.where.loops == backward.where.loops and step.where.loops[-1:] == (loop,)
            if same and len(step.where.guards) == len(backward.where.guards):
                yield Mistake(
                    step.node,
                    "a value is read from the GPU in every step, which waits for the GPU",
                    "",
                    advice="keep the tensor, and call .item() once in some fifty steps",
                )
                return


RULE = Rule(
    severity=Severity.NOTE,
    title="a value is read from the GPU in every step",
    why=(
        "`.item()` waits until the GPU has finished all queued work, so the CPU cannot prepare the next "
        "step. Add up the detached loss on the GPU, and read it every 50 steps or so. Well-known projects "
        "call it in every step nevertheless."
    ),
    find=_find,
)
