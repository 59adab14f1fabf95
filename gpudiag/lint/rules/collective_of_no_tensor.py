"""A collective that is given something else than a tensor."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.rule import Rule

_PLACES = {
    "broadcast": (0, "tensor"),
    "all_reduce": (0, "tensor"),
    "reduce": (0, "tensor"),
    "reduce_scatter_tensor": (1, "input"),
    "all_gather": (1, "tensor"),
    "gather": (0, "tensor"),
    "send": (0, "tensor"),
    "recv": (0, "tensor"),
}
# What only the destination, or the source, may give.
_LISTS = {
    "gather": (1, "gather_list"),
    "gather_object": (1, "object_gather_list"),
    "scatter": (1, "scatter_list"),
}
_WORDS = {
    "state_dict": "a state_dict",
    "parameters": "an iterator over parameters",
    "module": "a model",
    "ddp": "a model",
    "number": "a Python number",
    "int": "a Python number",
    "float": "a Python number",
    "optimizer": "an optimizer",
}


def _find(program: Program) -> Iterator[Mistake]:
    reported = set()
    for name, (place, keyword) in _PLACES.items():
        for step in program.calls(f"torch.distributed.{name}"):
            given = argument(step.node, place, keyword)
            kinds = program.values.kinds(given)
            if given is None or step.node in reported or not kinds or not kinds <= set(_WORDS):
                continue
            reported.add(step.node)
            kind = sorted(kinds)[0]
            yield Mistake(
                step.node,
                f"{name} takes a tensor, and gets {_WORDS[kind]}",
                _fix(program, step.node, given, kind),
            )
    for name, (place, keyword) in _LISTS.items():
        for step in program.calls(f"torch.distributed.{name}"):
            given = argument(step.node, place, keyword)
            if step.where.guards or step.node in reported or given is None or not _is_a_list(program, given):
                continue
            reported.add(step.node)
            yield Mistake(
                step.node,
                f"every rank gives {name} a {keyword}, which only one rank may give: the others raise",
                with_replaced(program, given, f"{ast.unparse(given)} if dist.get_rank() == 0 else None"),
            )
    for step in program.calls("torch.distributed.all_gather"):
        tensor = _repeated(program, argument(step.node, 0, "tensor_list"))
        if tensor is not None and step.node not in reported:
            reported.add(step.node)
            yield Mistake(
                step.node,
                "the list for the results holds one tensor many times: all its places show the last rank's",
                "",
                advice=f"make one for each rank: [{tensor} for _ in range(dist.get_world_size())]",
            )


def _is_a_list(program: Program, given: ast.expr) -> bool:
    """Whether an argument is a list on every rank: none that a branch makes."""
    if isinstance(given, ast.Name):
        made = program.values.reaching(given)
        if (
            len(made) != 1
            or made[0].path
            or any(isinstance(outer, ast.If | ast.Try) for outer in program.names.ancestors(made[0].node))
        ):
            return False
        given = made[0].value or given
    return isinstance(given, ast.List | ast.ListComp) or (
        isinstance(given, ast.BinOp) and isinstance(given.left, ast.List)
    )


def _repeated(program: Program, given: ast.expr | None) -> str | None:
    """The tensor of `[tensor] * size`, or of a list that takes one name for each rank.

    It is None for other lists.
    """
    if isinstance(given, ast.NamedExpr):
        given = given.value
    if isinstance(given, ast.Name):
        made = [binding.value for binding in program.values.reaching(given)]
        given = made[0] if len(made) == 1 else None
    if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Mult):
        [tensor, *others] = (
            given.left.elts if isinstance(given.left, ast.List) and given.left.elts else [None]
        )
        return ast.unparse(tensor) if tensor is not None and not others else None
    if isinstance(given, ast.ListComp) and isinstance(given.elt, ast.Name) and len(given.generators) == 1:
        counted = ast.unparse(given.generators[0].target)
        return f"torch.empty_like({given.elt.id})" if counted != given.elt.id else None
    return None


def _fix(program: Program, call: ast.AST, given: ast.expr, kind: str) -> str:
    shown = ast.unparse(given)
    if kind == "state_dict":
        return f"for tensor in {shown}.values(): {with_replaced(program, given, 'tensor')}"
    if kind == "parameters":
        return f"for parameter in {shown}: {with_replaced(program, given, 'parameter.data')}"
    if kind in ("module", "ddp"):
        return f"for parameter in {shown}.parameters(): {with_replaced(program, given, 'parameter.data')}"
    if shown.endswith(".item()"):
        return with_replaced(program, given, shown.removesuffix(".item()") + ".detach()")
    return f"value = torch.tensor(float({shown}), device=device); {with_replaced(program, given, 'value')}"


RULE = Rule(
    title="a collective gets a state_dict, a model, a number or one tensor many times",
    why=(
        "Collectives of torch.distributed take tensors and raise a TypeError for anything else. DDP "
        "broadcasts the initial state and averages the gradients by itself; by hand, do it tensor by tensor. "
        "`[tensor] * world_size` is one tensor, which each rank's data overwrites."
    ),
    find=_find,
)
