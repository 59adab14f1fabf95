"""A file:// store in a fixed place that nothing removes."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import in_front_of
from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.rule import Rule
from gpudiag.model.lint import Severity


def _find(program: Program) -> Iterator[Mistake]:
    if program.mentions(
        *"unlink remove rmtree tempfile mkdtemp NamedTemporaryFile uuid uuid4 SLURM_JOB_ID".split()
    ):
        return
    for step in program.opens_group:
        given = argument(step.node, 1, "init_method")
        values = [v.node for v in program.values.of(given)] if given is not None else []
        if (
            len(values) == 1
            and isinstance(values[0], ast.Constant)
            and str(values[0].value).startswith("file://")
        ):
            path = str(values[0].value).removeprefix("file://")
            yield Mistake(
                step.node,
                f"{path} stays when a run is killed, and the next run waits or fails",
                f"if int(os.environ.get('RANK', 0)) == 0 and os.path.exists({path!r}): os.remove({path!r})",
                place=in_front_of(program, step.node),
            )
            return


RULE = Rule(
    severity=Severity.NOTE,
    title="a file:// store at a fixed path may be left from the last run",
    why=(
        "The file must not exist when the ranks start. A killed run leaves it behind, and the next run "
        "takes the old addresses for those of its own ranks. Use a new file name for each run."
    ),
    find=_find,
)
