"""A checkpoint that every rank writes into one file."""

import ast
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program, argument, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import runs_beside
from gpudiag.lint.values import RANKS

_BY_RANK = RANKS | {"rank_text", "local_rank_text"}
_SHARDED = (
    "fully_shard FullyShardedDataParallel FSDP distribute_tensor parallelize_module checkpoint_wrapper rpc"
).split()


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.uses_accelerate or program.uses_deepspeed or program.mentions(*_SHARDED):
        return
    wraps = any(step.where.entry is None for step in program.ddp_steps)  # another file opened the group
    in_torch = wraps or (program.opens_group and (program.ddp_steps or program.training_loops()))
    if not in_torch and not program.averages_by_horovod:
        return
    reported = set()
    of_models = program.methods.get("save_pretrained", [])
    for step in (*program.calls("torch.save"), *of_models):
        path = argument(step.node, *((0, "save_directory") if step in of_models else (1, "f")))
        if (
            step.node in reported
            or path is None
            or step.where.handling
            or keyword(step.node, "is_main_process")
        ):
            continue
        if program.which_ranks(step) is not None or not _in_a_rank(program, step):
            continue
        if program.values.depends_on(path, _BY_RANK) or _is_elsewhere(program, path):
            continue
        reported.add(step.node)
        rank = "hvd.rank()" if program.uses_horovod else "dist.get_rank()"
        yield Mistake(
            step.node,
            "all ranks write this file at the same time",
            f"if {rank} == 0: {program.statement_text(step.node)}",
        )


def _in_a_rank(program: Program, step: Step) -> bool:
    """Whether the step runs in a rank, and not in the process that starts the ranks."""
    opened = program.opens_group
    if not opened:
        return step.where.entry is None
    if step.where.entry is None:
        return any(other.where.spawned == step.where.spawned for other in opened)
    return runs_beside(program, step, opened)


def _is_elsewhere(program: Program, path: ast.expr) -> bool:
    """Whether the file lies in a place of the process's own: temporary, or in memory."""
    made = (
        [b.value for b in program.values.reaching(path)] if isinstance(path, ast.Name | ast.Attribute) else []
    )
    text = " ".join(ast.unparse(node) for node in (path, *made) if node is not None).lower()
    return any(word in text for word in ("temp", "tmp", "buffer", "bytesio", "pid", "uuid", "hostname"))


RULE = Rule(
    title="every rank saves to the same file",
    why=(
        "The ranks write the file at the same time, and the result may be broken; on a shared disk each "
        "checkpoint is also written once per rank. Let rank 0 save, and the others wait where they read it "
        "next."
    ),
    find=_find,
)
