"""A call whose result is discarded."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, has_star, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import DDP_CLASSES

_HOROVOD = frozenset(
    """
    allreduce allgather broadcast alltoall reducescatter grouped_allreduce DistributedOptimizer
    broadcast_object allgather_object
    """.split()
)
_IN_PLACE = frozenset("all_reduce broadcast reduce all_gather gather scatter all_gather_object".split())
_ACCELERATE = frozenset({"prepare", "gather", "gather_for_metrics", "reduce", "pad_across_processes"})
_OTHERS = frozenset(
    {
        *DDP_CLASSES,
        "torch.nn.DataParallel",
        "datasets.distributed.split_dataset_by_node",
        "torch.distributed.fsdp.FullyShardedDataParallel",
    }
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.imports("pytest", "unittest"):  # a test calls what it tests, and may look at something else
        return
    for statement in program.nodes:
        if not isinstance(statement, ast.Expr | ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        call = statement.value
        if isinstance(statement, ast.Assign) and not _is_forgotten(program, statement):
            continue
        name = program.names.qualify(call.func) or ""
        package, _, short = name.rpartition(".")
        text = ast.unparse(call)
        if "barrier" in text or any(
            isinstance(part, ast.Constant) and part.value is ... for part in call.args
        ):
            continue  # an allreduce that is a barrier; a sketch
        if name in _OTHERS or (
            package.startswith("horovod.") and short in _HOROVOD and "tensorflow" not in package
        ):
            yield Mistake(
                call,
                f"the result of {short} is not used, and {short} changes nothing in place",
                f"{_taker(call)} = {text}",
            )
        elif (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in _ACCELERATE
            and "accelerator" in program.values.kinds(call.func.value)
        ):
            yield Mistake(
                call,
                f"the result of {call.func.attr} is not used, and {call.func.attr} changes nothing in place",
                f"{_taker(call)} = {text}",
            )
        elif package == "torch.distributed" and (
            is_constant(keyword(call, "async_op"), True)
            or (short in ("isend", "irecv") and not program.mentions("sync\\w*", "barrier"))
        ):
            yield Mistake(
                call,
                "the handle of an asynchronous call is not used: nothing waits for its end",
                f"work = {text}; work.wait()  # before the tensor is used",
            )
    yield from _find_used(program)
    for statement in program.nodes:
        if (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Call)
            and program.names.qualify(statement.value.func) == "torch.cuda.device"
        ):
            yield Mistake(
                statement.value,
                "torch.cuda.device is a context manager: without `with` it changes nothing",
                with_replaced(
                    program,
                    statement.value.func,
                    ast.unparse(statement.value.func).replace(".device", ".set_device"),
                ),
                program.edit(
                    statement.value.func, ast.unparse(statement.value.func).replace(".device", ".set_device")
                ),
            )


def _find_used(program: Program) -> Iterator[Mistake]:
    """Names for the result of a collective that works in place, and are read: they hold None."""
    for node in program.nodes:
        call = node.value if isinstance(node, ast.Assign) else None
        name = node.targets[0] if isinstance(node, ast.Assign) else None
        if not isinstance(call, ast.Call) or not isinstance(name, ast.Name) or has_star(call):
            continue
        package, _, short = (program.names.qualify(call.func) or "").rpartition(".")
        is_in_place = package == "torch.distributed" and short in _IN_PLACE
        if not is_in_place or keyword(call, "async_op") or len(call.args) > 3:
            continue
        read = [
            other
            for other in program.names.loaded
            if other.id == name.id and any(b.node is node for b in program.values.reaching(other))
        ]
        if read:
            text = f"{short} changes its argument and returns None: {name.id} is None afterwards"
            yield Mistake(
                call,
                text,
                ast.unparse(call) if ast.unparse(call.args[:1][0]) == name.id else "",
                advice=f"call {short} by itself, and read the tensor that it was given",
            )


def _is_forgotten(program: Program, made: ast.Assign) -> bool:
    """Whether nothing reads the one name that a statement binds to the handle of an asynchronous call."""
    name = made.targets[0]
    if not isinstance(name, ast.Name) or len(made.targets) > 1 or program.mentions("synchronize", "locals"):
        return False
    scope = program.names.find_scope(name)
    package = (program.names.qualify(getattr(made.value, "func", None)) or "").rpartition(".")[0]
    return package == "torch.distributed" and not any(
        other.id == name.id and program.names.find_scope(other) is scope for other in program.names.loaded
    )


def _taker(call: ast.Call) -> str:
    first = [
        ast.unparse(argument) for argument in call.args if isinstance(argument, ast.Name | ast.Attribute)
    ]
    attr = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return ", ".join(first) if attr == "prepare" and first else (first[0] if first else "result")


RULE = Rule(
    title="the result of a collective or a wrapper is discarded, or read where there is none",
    why=(
        "torch's collectives change their arguments and return None. Horovod's allreduce, Accelerate's "
        "gather and prepare, and DDP return a new object and do not change their arguments. An asynchronous "
        "collective has not ended until its handle was waited for. torch.cuda.device does nothing without "
        "`with`."
    ),
    find=_find,
)
