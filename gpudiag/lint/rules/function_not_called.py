"""A function used in place of its result."""

import ast
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule

_QUESTIONS = frozenset(
    """
    torch.distributed.is_initialized torch.distributed.is_available torch.distributed.get_rank
    torch.distributed.get_world_size torch.distributed.is_nccl_available torch.cuda.is_available
    torch.cuda.device_count torch.distributed.is_torchelastic_launched
    """.split()
) | frozenset(
    f"horovod.{p}.{f}"
    for p in ("torch", "tensorflow", "tensorflow.keras", "keras")
    for f in ("rank", "local_rank", "size", "is_initialized")
)
_PROPERTIES = frozenset(
    """
    is_main_process is_local_main_process process_index local_process_index num_processes is_last_process
    """.split()
)


_NAMES = (
    "main_process is_main is_master get_rank get_world_size is_rank is_distributed is_primary is_chief"
).split()


def _find(program: Program) -> Iterator[Mistake]:
    tested = {node for statement in program.nodes for node in _questions(statement)}
    for node in sorted(tested, key=lambda n: program.names.order.get(n, 0)):
        name = program.names.qualify(node)
        is_bound = isinstance(node, ast.Attribute) and program.values.reaching(node)
        function = program.values.function_of(node) if not is_bound else None
        is_question = name in _QUESTIONS or (function is not None and _asks_for_ranks(program, function))
        if is_question:
            shown = ast.unparse(node)
            edits = program.edit(node, f"{shown}()")
            fix = program.edited_line(edits) if edits else f"{shown}()"
            yield Mistake(
                node, f"{shown} is not called here: a function is always true, and is no number", fix, edits
            )
    for call in program.names.calls:
        func = call.func
        if (
            isinstance(func, ast.Attribute)
            and func.attr in _PROPERTIES
            and not call.args
            and "accelerator" in program.values.kinds(func.value)
        ):
            edits = program.edit(call, ast.unparse(func))
            yield Mistake(
                call,
                f"{func.attr} is no function: calling it raises a TypeError",
                program.edited_line(edits) if edits else ast.unparse(func),
                edits,
            )


def _questions(node: ast.AST) -> Iterator[ast.expr]:
    """The bare names that a statement uses as a truth value or a number."""
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        tests.append(node.test)
    elif isinstance(node, ast.BoolOp):
        tests += node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        tests.append(node.operand)
    elif isinstance(node, ast.Compare) and not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Constant) for side in sides):
            tests += sides
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Mult | ast.Div | ast.FloorDiv):
        tests += [node.left, node.right]
    yield from (test for test in tests if isinstance(test, ast.Name | ast.Attribute))


def _asks_for_ranks(program: Program, function: ast.AST) -> bool:
    """Whether a function of this script returns the rank, or whether it is the first."""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return False
    name = function.name
    return any(word in name for word in _NAMES)


RULE = Rule(
    title="a function that returns the rank is not called",
    why=(
        "`if is_main_process:` tests the function itself, which is always true: every rank takes the "
        "branch. `dist.get_rank == 0` is never true. Accelerate's is_main_process is the other way round, a "
        "property."
    ),
    find=_find,
    fixes=True,
)
