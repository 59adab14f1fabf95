"""A data set that uses the GPU in the processes that DataLoader forks."""

import ast
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program, argument, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.rules.cuda_visible_devices_late import uses_cuda
from gpudiag.lint.vocabulary import LOADER


def _find(program: Program) -> Iterator[Mistake]:
    if program.mentions("set_start_method", "is_initialized_in_fork"):
        return
    reported: set[ast.AST] = set()
    for step in program.calls(LOADER):
        workers = argument(step.node, 5, "num_workers")
        counts = [v.node.value for v in program.values.of(workers) if isinstance(v.node, ast.Constant)]
        if not counts or not all(type(count) is int and count > 0 for count in counts):
            continue
        if keyword(step.node, "multiprocessing_context") is not None:
            continue
        for function in _run_in_workers(program, step.node):
            moves = [
                n
                for n in ast.walk(function)
                if getattr(getattr(n, "func", None), "attr", "") in ("cuda", "to")
            ]
            found = next((node for node in moves if uses_cuda(program, node)), None)
            if found is not None and found not in reported:
                reported.add(found)
                yield Mistake(
                    found,
                    "a worker of DataLoader, which is a fork, uses the GPU",
                    "",
                    advice="return tensors of the CPU, and move the batch to the GPU in the training loop",
                )


def _run_in_workers(program: Program, loader: ast.AST) -> Iterator[ast.AST]:
    """The functions of this script that a loader's workers call: of its data set, and what joins samples."""
    for value in program.values.of(argument(loader, 0, "dataset")):
        if isinstance(value.node, ast.ClassDef):
            names = ("__getitem__", "__iter__")
            yield from (f for name in names if (f := program.values.method_of(value.node, name)))
    joins = program.values.function_of(argument(loader, 6, "collate_fn"))
    if joins is not None:
        yield joins


# Source: torch's notes on multiprocessing, "CUDA in multiprocessing".
RULE = Rule(
    title="a data set uses the GPU in DataLoader's workers",
    why=(
        "DataLoader forks its workers, and CUDA cannot be used in a fork of a process that has used it: the "
        "first batch ends with `Cannot re-initialize CUDA in forked subprocess`."
    ),
    find=_find,
)
