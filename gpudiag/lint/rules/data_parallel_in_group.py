"""DataParallel in a script that opens a process group."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import DATA_PARALLEL

_ABOUT_GPUS = re.compile(r"device_count|is_available|n_?gpus?|num_gpus?|cuda", re.IGNORECASE)


def _find(program: Program) -> Iterator[Mistake]:
    if (
        program.owner
        or program.uses_accelerate
        or program.ddp_steps
        or program.mentions("DistributedDataParallel", "DDP")
    ):
        return
    opened = [
        step
        for step in program.opens_group
        if step.where.entry is None
        or not any("__name__" not in ast.unparse(guard.test) for guard in step.where.guards)
    ]
    if not opened:
        return
    allowed = {(ast.unparse(guard.test), guard.holds) for guard in opened[0].where.guards}
    for step in program.calls(DATA_PARALLEL):
        if not isinstance(step.node, ast.Call) or (
            step.where.entry is not None and step.where.entry is not opened[0].where.entry
        ):
            continue
        others = [g for g in step.where.guards if (ast.unparse(g.test), g.holds) not in allowed]
        if any(not _ABOUT_GPUS.search(ast.unparse(guard.test)) or not guard.holds for guard in others):
            continue
        model = ast.unparse(step.node.args[0]) if step.node.args else "model"
        fix = with_replaced(program, step.node, f"DistributedDataParallel({model}, device_ids=[local_rank])")
        yield Mistake(
            step.node,
            "DataParallel is used beside init_process_group: no gradient is exchanged between the processes",
            fix,
        )
        return


RULE = Rule(
    title="DataParallel is used in a process that has joined a process group",
    why="Every process then uses all GPUs and trains its own model; the group never averages a gradient.",
    find=_find,
)
