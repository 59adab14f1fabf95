"""Gradients that are added up over all steps, or set to zero before they are all there."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import behind
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.training import is_optimizer, repeats
from gpudiag.model.lint import Severity


def _find(program: Program) -> Iterator[Mistake]:
    if (
        program.owner
        or program.uses_deepspeed
        or not (program.opens_group or program.ddp_steps or program.uses_horovod or program.uses_accelerate)
    ):
        return
    yield from _find_lost(program)
    yield from _find_early(program)
    if program.mentions(
        "zero_grad", "zero_grads?\\w*", "clear_grad\\w*", "autograd\\.grad", "functional_call", "grad_fn"
    ):
        return
    if _clears_by_hand(program):
        return
    reported = set()
    for step in program.methods.get("step", []):
        call = step.node
        stepped = step.receiver
        if "scaler" in program.values.kinds(stepped):
            stepped = argument(call, 0, "optimizer")
        if stepped is None or call in reported or not is_optimizer(program, stepped):
            continue
        loops = [loop for loop in step.where.loops if repeats(program, loop)]
        backward = [
            b for b in program.backwards if b.where.loops and step.where.loops[-1:] == b.where.loops[-1:]
        ]
        if loops and backward:
            reported.add(call)
            name = ast.unparse(stepped)
            yield Mistake(
                call,
                "zero_grad is never called: each step adds its gradients to those of all earlier steps",
                f"{name}.zero_grad()",
                place=behind(program, call),
            )


def _find_lost(program: Program) -> Iterator[Mistake]:
    """`backward(); zero_grad(); step()` in one block."""
    for step in program.methods.get("zero_grad", []):
        statement = program.names.statement_of(step.node)
        outer = program.names.parents.get(statement) if statement is not None else None
        block = getattr(outer, "body", None)
        if statement is None or not isinstance(block, list) or statement not in block:
            continue
        place = block.index(statement)
        before, after = (block[place - 1] if place else None), (block[place + 1 : place + 2] or [None])[0]
        steps = _calls(before, "backward") and _calls(after, "step")
        if (
            steps
            and after is not None
            and step.receiver is not None
            and ast.unparse(step.receiver) in ast.unparse(after)
        ):
            yield Mistake(
                step.node,
                "zero_grad stands between backward and step: each step has gradients of zero",
                "",
                advice="call zero_grad before the backward pass, or after the step",
            )


def _find_early(program: Program) -> Iterator[Mistake]:
    """zero_grad before the backward pass under Accelerate's `accumulate`, which runs it in the last round."""
    counts = [keyword(s.node, "gradient_accumulation_steps") for s in program.calls("accelerate.Accelerator")]
    given = next((count for count in counts if count is not None), None)
    if given is None or is_constant(given, 1):
        return
    for step in program.methods.get("zero_grad", []):
        rounds = [
            w for w in step.where.withs if getattr(getattr(w, "func", None), "attr", "") == "accumulate"
        ]
        values = program.values.of(step.receiver)
        if not rounds or step.where.guards or any(value.kind != "prepared" for value in values):
            continue
        order = program.names.order
        later = [b for b in program.backwards if b.where.withs[-1:] == step.where.withs[-1:]]
        if later and all(order[b.node] > order[step.node] for b in later):
            yield Mistake(
                step.node,
                "zero_grad runs in the last round of an accumulation, before its backward pass: the "
                "gradients of the other rounds are lost",
                "",
                advice="call zero_grad after the optimizer's step",
                severity=None if isinstance(given, ast.Constant) else Severity.NOTE,
            )
            return


def _calls(statement: ast.AST | None, method: str) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "attr", "") == method


def _clears_by_hand(program: Program) -> bool:
    """Whether gradients are set to None or zeroed one by one."""
    for node in program.nodes:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Attribute) and t.attr == "grad" for t in node.targets
        ):
            return True
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("zero_", "fill_")
            and "grad" in ast.unparse(node.value)
        ):
            return True
    return False


RULE = Rule(
    title="the gradients are never set to zero, or before they are used",
    why=(
        "backward() adds to the existing gradients. Without zero_grad each step follows the sum of all "
        "gradients so far, and the loss soon grows. A zero_grad between the backward passes and the step "
        "takes away what they have added."
    ),
    find=_find,
)
