"""A tensor that is used while an asynchronous call still works on it."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import following

_MODULES = re.compile(r"^_?(?:model|net|module|layers?|block|stage|encoder|decoder|forward)$")
_READS = frozenset("sum mean item tolist cpu numpy clone add sub mul div max min argmax norm any all".split())
_HARMLESS = frozenset({"requires_grad_", "record_stream_"})
_WAITS = ("wait", "synchronize", "barrier", "sleep", "result", "is_completed")


def _find(program: Program) -> Iterator[Mistake]:
    for statement in program.nodes:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        call, handle = statement.value, statement.targets[0]
        package, _, name = (program.names.qualify(call.func) or "").rpartition(".")
        tensor = argument(call, 0, "tensor")
        if (
            package != "torch.distributed"
            or not isinstance(handle, ast.Name)
            or handle.id not in {name.id for name in program.names.loaded}  # another rule reports the handle
            or not isinstance(tensor, ast.Name | ast.Attribute)
            or not (name in ("isend", "irecv") or is_constant(keyword(call, "async_op"), True))
            or name in ("all_gather", "gather", "scatter", "all_to_all", "barrier")
        ):
            continue
        for later in following(program.names, statement):
            shown = ast.unparse(later)
            if hasattr(later, "body") or handle.id in shown or any(word in shown for word in _WAITS):
                break
            touched = _touches(later, ast.unparse(tensor), reads=name != "isend")
            if touched is not None:
                line = program.line_at(call.lineno).number
                verb = "read or changed" if name != "isend" else "changed"
                yield Mistake(
                    touched,
                    f"{ast.unparse(tensor)} is {verb} while {name} of line {line} still works on it",
                    f"{handle.id}.wait(); {shown}",
                )
                break
            if any(ast.unparse(target) == ast.unparse(tensor) for target in getattr(later, "targets", ())):
                break


def _touches(statement: ast.stmt, tensor: str, *, reads: bool) -> ast.AST | None:
    """The part of a statement that changes a tensor in place, or computes with it."""
    for node in ast.walk(statement):
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target).split("[")[0] == tensor:
            return node
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == tensor
        ):
            return node
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == tensor:
            changes = node.attr.endswith("_") and not node.attr.endswith("__") and node.attr not in _HARMLESS
            if changes or (reads and node.attr in _READS):
                return node
        if (
            isinstance(node, ast.Call)
            and reads
            and tensor in map(ast.unparse, node.args)
            and _is_a_layer(node)
        ):
            return node
        if (
            reads
            and isinstance(node, ast.BinOp)
            and tensor in (ast.unparse(node.left), ast.unparse(node.right))
        ):
            return node
    return None


def _is_a_layer(call: ast.Call) -> bool:
    """Whether a call computes with what it is given, by its name: `self.block(x)`, `F.relu(x)`."""
    name = ast.unparse(call.func)
    return (
        name.startswith(("F.", "torch.nn.functional."))
        or _MODULES.search(name.rsplit(".", 1)[-1]) is not None
    )


RULE = Rule(
    title="a tensor is used before the wait for an asynchronous call",
    why=(
        "isend, irecv and a collective with async_op=True return at once and work on the tensor in the "
        "background. Until the handle's wait(), what is read may be old, and what is written may be sent."
    ),
    find=_find,
)
