"""A running total that keeps the graph of every step."""

import ast
from collections.abc import Iterator

from gpudiag.lint.arguments import argument_of
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import without_gradients


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or not (
        program.opens_group
        or program.ddp_steps
        or program.uses_horovod
        or program.uses_accelerate
        or program.uses_deepspeed
    ):
        return
    reported = set()
    for step in program.steps:
        node = step.node
        target, added = _addition(node)
        if target is None:
            target, added = _addition_inside(program, node)
        if target is None or added is None or node in reported or not step.where.loops:
            continue
        if without_gradients(program, step) or not _is_of_the_backward(program, step, added):
            continue
        if _is_used_whole(program, target) or _starts_in_the_loop(program, step, target):
            continue
        reported.add(node)
        edits = program.edit(added, f"{added.id}.detach()")
        name = ast.unparse(target)
        fix = program.edited_line(edits) if edits else f"{name} += {added.id}.detach()"
        yield Mistake(node, f"{name} keeps the graph of every step, and memory grows", fix, edits)


def _addition(node: ast.AST) -> tuple[ast.expr | None, ast.Name | None]:
    """The total and the name that a statement adds to it: `total += loss`, `losses.append(loss)`."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.Name):
        is_one = isinstance(node.target, ast.Name | ast.Attribute) or (
            isinstance(node.target, ast.Subscript) and isinstance(node.target.slice, ast.Constant)
        )
        return (node.target, node.value) if is_one else (None, None)
    if (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.BinOp)
        and isinstance(node.value.op, ast.Add)
    ):
        sides = (node.value.left, node.value.right)
        for total, added in (sides, sides[::-1]):
            if isinstance(added, ast.Name) and ast.unparse(total) == ast.unparse(node.targets[0]):
                return node.targets[0], added
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and len(call.args) == 1:
            return (call.func.value, call.args[0]) if isinstance(call.args[0], ast.Name) else (None, None)
    return None, None


def _addition_inside(program: Program, node: ast.AST) -> tuple[ast.expr | None, ast.Name | None]:
    """The total and the name of `meter.update(loss)`, where that method adds its argument as it is."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not call.args or not isinstance(given := call.args[0], ast.Name):
        return None, None
    function = program.values.function_of(call.func)
    for statement in function.body if isinstance(function, ast.FunctionDef) else ():
        total, added = _addition(statement)
        if total is None or added is None or not ast.unparse(total).startswith("self."):
            continue
        if function is not None and argument_of(function, added.id, call) is given:
            is_as_it_is = all(binding.parameter for binding in program.values.reaching(added))
            return (call.func, given) if is_as_it_is else (None, None)
    return None, None


def _is_of_the_backward(program: Program, step: Step, added: ast.Name) -> bool:
    """Whether the added value is still the tensor from which this round's gradients are computed."""
    for backward in program.backwards:
        call = backward.node
        if (
            backward.where.loops != step.where.loops
            or not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Attribute)
        ):
            continue
        losses = [call.func.value, *call.args[:1]]
        for loss in losses:
            if isinstance(loss, ast.Name) and loss.id == added.id:
                theirs = {b.node for b in program.values.reaching(loss)}
                ours = program.values.reaching(added)
                texts = " ".join(ast.unparse(b.value) for b in ours if b.value is not None)
                if {b.node for b in ours} == theirs and not any(
                    w in texts for w in (".item(", "detach", ".data", "float(", "reduce")
                ):
                    return True
    return False


def _is_used_whole(program: Program, target: ast.expr) -> bool:
    """Whether gradients are computed from the total itself."""
    text = ast.unparse(target)
    for backward in program.backwards:
        call = backward.node
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and text in " ".join(ast.unparse(p) for p in (call.func.value, *call.args))
        ):
            return True
    return any(
        isinstance(n, ast.Assign)
        and text in ast.unparse(n.value)
        and any(ast.unparse(t) == "loss" for t in n.targets)
        for n in program.nodes
    )


def _starts_in_the_loop(program: Program, step: Step, target: ast.expr) -> bool:
    """Whether the total is reset or detached in some of the rounds: then it keeps a few graphs, never all."""
    loop, text = step.where.loops[-1], ast.unparse(target)
    return any(
        loop in other.where.loops and _lets_go(other.node, text)
        for other in program.steps
        if isinstance(other.node, ast.Assign | ast.Call)
    )


def _lets_go(node: ast.AST, text: str) -> bool:
    """Whether a statement or call discards a total: `total = 0`, `total.detach()`, `losses.clear()`."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in (f"{text}.clear", f"{text}.detach_", f"{text}.zero_")
    if not isinstance(node, ast.Assign):
        return False
    parts = [part for whole in node.targets for part in getattr(whole, "elts", [whole])]
    if not any(text == (part := ast.unparse(p)) or text.startswith(f"{part}[") for p in parts):
        return False
    value = node.value
    goes_on = any(ast.unparse(part) == text for part in ast.walk(value) if isinstance(part, ast.expr))
    return not goes_on or "detach" in ast.unparse(value)


RULE = Rule(
    title="a running total of the loss keeps every step's graph",
    why=(
        "The loss is a tensor that keeps its graph. A sum of losses keeps all of their graphs, and memory "
        "grows with every step until it runs out."
    ),
    find=_find,
    fixes=True,
)
