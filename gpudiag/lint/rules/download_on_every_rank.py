"""A data set that every rank downloads into one folder."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import runs_beside
from gpudiag.lint.values import RANKS

_ONE_FIRST = (
    "FileLock filelock torch_distributed_zero_first main_process_first local_main_process_first".split()
)
_PACKAGES = ("torchvision.datasets", "torchaudio.datasets", "torchtext.datasets")


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or not _has_ranks(program):
        return
    calls = [(name, step) for package in _PACKAGES for name, step in program.calls_within(package)]
    guarded = {name for name, step in calls if program.which_ranks(step) in (Which.ONE, Which.PERHAPS)}
    reported = set()
    if any(
        program.which_ranks(step) in (Which.ONE, Which.OTHERS)
        for step in program.calls("torch.distributed.barrier")
    ):
        return  # ranks wait for one another here: rank 0 first, most likely
    for name, step in calls:
        download = keyword(step.node, "download")
        if step.node in reported or not is_constant(download, True) or name in guarded or step.where.handling:
            continue
        root = argument(step.node, 0, "root")
        if program.which_ranks(step) is not None or not _in_a_rank(program, step):
            continue
        if program.values.depends_on(root, RANKS | {"rank_text", "local_rank_text"}) or _is_done_before(
            program, name, step
        ):
            continue
        reported.add(step.node)
        yield Mistake(
            step.node,
            "all ranks download the data set into one folder at the same time",
            _fix(program, step.node) if isinstance(step.node, ast.Call) else "",
        )
        return


def _fix(program: Program, call: ast.Call) -> str:
    """The statement or call by which one rank of each machine downloads first, in the script's own names."""
    for step in program.calls("accelerate.Accelerator"):
        made = program.names.statement_of(step.node)
        if isinstance(made, ast.Assign) and made.value is step.node:
            name = ast.unparse(made.targets[0])
            return f"with {name}.local_main_process_first(): {program.statement_text(call)}"
    if program.uses_horovod:
        first = "hvd.local_rank() == 0"
    elif "local_rank" in program.names.bound:
        first = "(local_rank == 0)"
    elif program.mentions("LOCAL_RANK"):
        first = 'int(os.environ["LOCAL_RANK"]) == 0'
    else:  # ranks that the script or a person starts have no such variable
        first = "(dist.get_rank() == 0)"
    text = with_replaced(program, next(k.value for k in call.keywords if k.arg == "download"), first)
    return f"{text}  # rank 0 first, then a barrier"


def _has_ranks(program: Program) -> bool:
    return bool(
        program.opens_group or program.calls("accelerate.Accelerator", "deepspeed.initialize")
    ) or any(name == "init" for name, _ in program.calls_within("horovod.torch"))


def _in_a_rank(program: Program, step: Step) -> bool:
    """Whether the step surely runs in a rank: the group is opened in the same process, in the same run."""
    opened = program.opens_group
    return runs_beside(program, step, opened) if opened else step.where.entry is None


def _is_done_before(program: Program, name: str, step: Step) -> bool:
    """Whether the process that starts the ranks, or a barrier's side, has downloaded it already."""
    for package in _PACKAGES:
        for other in program.calls(f"{package}.{name}"):
            if other is not step and step.where.spawned and not other.where.spawned:
                return True
    return program.mentions(*_ONE_FIRST)


RULE = Rule(
    title="every rank downloads the data set into one folder",
    why=(
        "The ranks write the same archive at the same time and unpack half-written files: it works on one "
        "day and fails on another with a wrong checksum. Rank 0 of each machine downloads first, the others "
        "wait at a barrier."
    ),
    find=_find,
)
