"""A checkpoint that every rank writes into one file, and a folder that every rank makes or removes."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import with_keyword
from gpudiag.lint.origins import calls_behind
from gpudiag.lint.program import Mistake, Program, argument, has_star, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import runs_beside
from gpudiag.lint.values import RANKS
from gpudiag.model.lint import Severity

_BY_RANK = RANKS | {"rank_text", "local_rank_text"}
_ASKS = re.compile(r"exists|isdir|is_dir")  # whether a folder is there
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
    yield from _find_folders(program)
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


def _find_folders(program: Program) -> Iterator[Mistake]:
    """Folders that every rank removes, or makes though none may be there: one rank does it first."""
    reported = set()
    if any(program.which_ranks(step) for step in program.calls("torch.distributed.barrier")):
        return  # ranks wait for one another by turns
    for path, step in _folder_calls(program):
        call, guards = step.node, [g for g in step.where.guards if "__name__" not in ast.unparse(g.test)]
        if (
            not isinstance(call, ast.Call)
            or call in reported
            or step.where.handling
            or _is_caught(program, call)
        ):
            continue
        if program.which_ranks(step) is not None or not _in_a_rank(program, step):
            continue
        if program.values.depends_on(path, _BY_RANK) or _is_elsewhere(program, path):
            continue
        removes = program.names.qualify(call.func) == "shutil.rmtree"
        asks = any(_ASKS.search(ast.unparse(guard.test)) for guard in guards)
        if guards and not removes and not asks:
            continue
        reported.add(call)
        if removes:
            message = "all ranks remove this folder at the same time: one finds it gone, and ends"
            rank = "hvd.rank()" if program.uses_horovod else "dist.get_rank()"
            yield Mistake(call, message, f"if {rank} == 0: {program.statement_text(call)}  # then a barrier")
            continue
        # Where a rank looks first whether it is there, only a rank that looks at the same moment fails.
        when = " if they look at the same moment" if asks else ""
        message = f"all ranks make this folder: one succeeds, and the others end with FileExistsError{when}"
        severity = Severity.NOTE if asks else None
        yield Mistake(call, message, with_keyword(program, call, "exist_ok", "True"), severity=severity)


def _folder_calls(program: Program) -> Iterator[tuple[ast.expr, Step]]:
    """The calls that remove a folder, or make one that must not be there, with its path."""
    by_name = [
        *(
            (argument(s.node, 0, "path"), s)
            for s in program.calls("shutil.rmtree", "os.makedirs", "os.mkdir")
        ),
        *((s.receiver, s) for s in program.methods.get("mkdir", []) if _is_path(program, s.receiver)),
    ]
    for path, step in by_name:
        call = step.node
        tolerant = any(keyword(call, word) for word in ("ignore_errors", "onerror", "onexc"))
        exists = keyword(call, "exist_ok")
        many = isinstance(call, ast.Call) and (len(call.args) > 1 or has_star(call))
        if path is not None and not tolerant and not many and (exists is None or is_constant(exists, False)):
            yield path, step


def _is_path(program: Program, node: ast.expr | None) -> bool:
    """Whether an expression is a path of pathlib."""
    return node is not None and any(
        (program.names.qualify(call.func) or "").startswith("pathlib.")
        for call in calls_behind(program, [node])
    )


def _is_caught(program: Program, call: ast.Call) -> bool:
    """Whether a handler of the script catches what the call raises."""
    return any(isinstance(outer, ast.Try) and outer.handlers for outer in program.names.ancestors(call))


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
    title="every rank saves to the same file, or makes or removes the same folder",
    why=(
        "The ranks write the file at the same time, and the result may be broken; on a shared disk each "
        "checkpoint is also written once per rank. A folder can be made or removed once: the other ranks "
        "end with an error. Let rank 0 do it, and the others wait where they need it next."
    ),
    find=_find,
)
