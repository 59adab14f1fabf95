"""A checkpoint of all ranks under a name that each rank makes by its own clock, or at random."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import behind
from gpudiag.model.lint import Severity

_CLOCKS = frozenset(
    """
    time.time time.time_ns time.strftime time.ctime time.localtime datetime.datetime.now
    datetime.datetime.utcnow datetime.datetime.today uuid.uuid1 uuid.uuid4
    """.split()
)
_SAVES = ("torch.distributed.checkpoint.save", "torch.distributed.checkpoint.async_save")
# Ranks that start in one minute agree on a name without seconds.
_COARSE = re.compile(r"%[YmdHMbBjy]")
_FINE = re.compile(r"%[SsfXcT]|uuid|time\.time")


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.mentions(r"\w*broadcast\w*", "gather_object", "all_gather_object"):
        return
    reported = set()
    for step, path in _saves(program):
        if path is None or step.node in reported or program.which_ranks(step) is not None:
            continue
        parts = list(behind(program, path))
        clocks = [p for p in parts if isinstance(p, ast.Call) and program.names.qualify(p.func) in _CLOCKS]
        if not clocks:
            continue
        reported.add(step.node)
        text = " ".join(ast.unparse(part) for part in parts if isinstance(part, ast.expr))
        is_coarse = _COARSE.search(text) is not None and _FINE.search(text) is None
        line = program.line_at(clocks[0].lineno).number
        yield Mistake(
            step.node,
            f"each rank makes the name of this checkpoint by itself (line {line}): its parts go to several",
            "",
            advice="let rank 0 make the name, and send it to the others by broadcast_object_list",
            severity=Severity.NOTE if is_coarse else None,
        )


def _saves(program: Program) -> Iterator[tuple[Step, ast.expr | None]]:
    """The calls by which all ranks save parts of one checkpoint, with its name."""
    for step in program.methods.get("save_state", []):
        if program.values.kinds(step.receiver) == {"accelerator"}:
            yield step, argument(step.node, 0, "output_dir")
    for step in program.methods.get("save_checkpoint", []):
        if program.values.kinds(step.receiver) == {"engine"}:
            yield step, argument(step.node, 0, "save_dir")
            yield step, argument(step.node, 1, "tag")
    for step in program.calls(*_SAVES):
        yield step, argument(step.node, 99, "checkpoint_id")


RULE = Rule(
    title="each rank names a checkpoint of all ranks by its own clock",
    why=(
        "Each rank writes its part of such a checkpoint into the folder that it was given. Ranks do not read "
        "the clock in the same second, and no two draw the same uuid: the parts go to different folders, "
        "without an error, and no folder can be loaded."
    ),
    find=_find,
)
