"""A log writer, or wandb run, on every rank."""

import ast
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program, argument, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.training import runs_beside
from gpudiag.lint.values import RANKS

_WRITERS = ("torch.utils.tensorboard.SummaryWriter", "wandb.init", "mlflow.start_run")


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner not in (None, "TRL", "Hugging Face's Trainer") or program.mentions(
        "WANDB_MODE", "WANDB_DISABLED"
    ):
        return
    opened = program.opens_group
    horovod = [step for name, step in program.calls_within("horovod.torch") if name == "init"]
    if not opened and not horovod:
        return
    reported = set()
    for step in program.calls(*_WRITERS):
        call = step.node
        if not isinstance(call, ast.Call) or call in reported or step.where.handling:
            continue
        if program.which_ranks(step) is not None or not runs_beside(program, step, opened or horovod):
            continue
        if (
            program.values.depends_on(call, RANKS | {"rank_text", "local_rank_text", "main_process"})
            or keyword(call, "group")
            or argument(call, 99, "mode")
        ):
            continue
        reported.add(call)
        rank = "hvd.rank()" if horovod else "dist.get_rank()"
        what = "wandb run" if "wandb" in ast.unparse(call.func) else "log writer"
        yield Mistake(
            call, f"every rank opens its own {what}", f"if {rank} == 0: {program.statement_text(call)}"
        )


RULE = Rule(
    title="every rank opens a log writer",
    why=(
        "Each rank writes events into one folder, or starts a run of its own on the server: curves are "
        "drawn several times, and runs pile up."
    ),
    find=_find,
)
