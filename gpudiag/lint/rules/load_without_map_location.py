"""A checkpoint that every rank loads onto the GPU from which it was saved."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import with_keyword
from gpudiag.lint.program import Mistake, Program, argument, has_star, is_constant
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import INIT
from gpudiag.model.lint import Severity

_DATA = re.compile(
    r"data|feature|cache|example|sample|token|vocab|embedding|label|latent|split|batch|indices|stats",
    re.IGNORECASE,
)
_WEIGHTS = re.compile(
    r"ckpt|checkpoint|model|state|weight|snapshot|pretrain|resume|optim|\bnet", re.IGNORECASE
)


def _find(program: Program) -> Iterator[Mistake]:
    if (
        program.owner
        or program.uses_accelerate
        or program.uses_deepspeed
        or not (program.opens_group and program.ddp_steps)
    ):
        return
    if any(is_constant(argument(step.node, 0, "backend"), "gloo", "mpi") for step in program.calls(INIT)):
        return
    for step in program.calls("torch.load"):
        if (
            argument(step.node, 1, "map_location") is None
            and not has_star(step.node)
            and program.which_ranks(step) is None
            and not _is_data(program.statement_text(step.node))
        ):
            yield Mistake(
                step.node,
                "every rank loads the checkpoint onto the GPU that saved it, which is GPU 0",
                with_keyword(program, step.node, "map_location", "'cpu'")
                if isinstance(step.node, ast.Call)
                else "",
            )
            return


def _is_data(text: str) -> bool:
    """Whether a statement loads prepared data, which lay in the host's memory when it was saved."""
    return _DATA.search(text) is not None and _WEIGHTS.search(text) is None


RULE = Rule(
    severity=Severity.NOTE,
    title="a checkpoint is loaded without map_location",
    why=(
        "Tensors are loaded to the GPU that they were saved from, mostly GPU 0: every rank uses memory "
        "there, and many ranks exhaust it."
    ),
    find=_find,
)
