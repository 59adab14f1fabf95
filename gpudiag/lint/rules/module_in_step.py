"""A training step that bypasses DDP or the DeepSpeed engine."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.origins import calls_behind
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import root_name, without_gradients, wrappings
from gpudiag.model.lint import Severity

_WRAPPED = frozenset({"ddp", "engine", "prepared"})
_DO_MORE = frozenset({"engine", "accelerator"})


def _find(program: Program) -> Iterator[Mistake]:
    reported: set[ast.AST] = set()
    for step in program.steps:
        call = step.node
        if not isinstance(call, ast.Call) or call in reported or not _goes_into_backward(program, step):
            continue
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr != "module" and not _calls_wrapped(program, step):
            func = func.value  # `model.module.compute_loss(..)`
        if isinstance(func, ast.Call) and func.args and _is_unwrapped(program, func):
            reported.add(call)
            wrapped = ast.unparse(func.args[0])
            message = f"the step calls what is inside of {wrapped}: the ranks average no gradient"
            yield Mistake(call, message, _fix(program, call, wrapped))
        if (
            isinstance(func, ast.Attribute)
            and func.attr == "module"
            and "inner" in program.values.kinds(func)
            and program.values.kinds(func.value) & {"ddp", "engine"}
            and "dp" not in program.values.kinds(func.value)
        ):
            reported.add(call)
            yield Mistake(
                call,
                "the step calls model.module: DDP does not see it and averages no gradient",
                _fix(program, call, ast.unparse(func.value)),
            )
        elif _names_the_inside(program, func) and not _calls_wrapped(program, step):
            reported.add(call)
            message = f"the step calls {ast.unparse(func)}, which is inside of the wrapped model: "
            advice = "call the model that is wrapped; take it out for saving only"
            yield Mistake(call, f"{message}the ranks average no gradient", "", advice=advice)
    yield from _find_raw(program, reported)
    yield from _find_backwards(program)


def _names_the_inside(program: Program, func: ast.expr) -> bool:
    """Whether a name, or what a function gives, is `model.module` wherever the model is wrapped."""
    values = program.values.of(func) if isinstance(func, ast.Name | ast.Call) else frozenset()
    inside = [v.node for v in values if v.kind == "inner" and isinstance(v.node, ast.Attribute)]
    if not inside or any(value.kind not in ("inner", "ddp", "prepared") for value in values):
        return False
    if len(values) > len(inside) and not all(_is_asked_for(program, node) for node in inside):
        return False
    return all((kinds := program.values.kinds(node.value)) <= _WRAPPED and bool(kinds) for node in inside)


def _is_asked_for(program: Program, node: ast.AST) -> bool:
    """Whether a condition around an expression tests that the model is wrapped, or that there is a job."""
    tests = [a.test for a in program.names.ancestors(node) if isinstance(a, ast.If | ast.IfExp)]
    return any(re.search(r"isinstance|hasattr|world|dist|ddp|parallel", ast.unparse(t), re.I) for t in tests)


def _find_backwards(program: Program) -> Iterator[Mistake]:
    """`loss.backward()` of what a DeepSpeed engine computes, or of an Accelerator that scales it."""
    scales = program.mentions("fp16", "accumulate", "gradient_accumulation_steps")
    if program.owner or any(program.values.kinds(s.receiver) & _DO_MORE for s in program.backwards):
        return
    for step in program.backwards:
        made = calls_behind(program, [step.receiver]) if step.receiver is not None else ()
        kinds = {next(iter(found)) for call in made if len(found := program.values.kinds(call.func)) == 1}
        who = "engine" if "engine" in kinds else "accelerator" if scales and "prepared" in kinds else ""
        if who and step.receiver is not None:
            message = f"the {who} does not see this backward pass, and neither scales nor averages for it"
            severity = Severity.NOTE if who == "engine" else None  # newer versions of DeepSpeed see it
            fix = f"{who}.backward({ast.unparse(step.receiver)})"
            yield Mistake(step.node, message, fix, severity=severity)
            return


def _is_unwrapped(program: Program, made: ast.Call) -> bool:
    """Whether a call gives the model inside a wrapped one: `accelerator.unwrap_model(model)`."""
    kinds = program.values.kinds(made)
    return "inner" in kinds and kinds <= {"inner", "ddp"} and program.values.kinds(made.args[0]) <= _WRAPPED


def _calls_wrapped(program: Program, step: Step) -> bool:
    """Whether the same loss also depends on a call of the wrapped model."""
    behind = [
        other
        for b in program.backwards
        if b.receiver is not None and isinstance(b.node, ast.Call) and _feeds(program, step.node, b.node)
        for other in calls_behind(program, [b.receiver, *b.node.args])
    ]
    kinds = [program.values.kinds(other.func) for other in behind]
    return any(found & _WRAPPED and "inner" not in found for found in kinds)


def _find_raw(program: Program, reported: set[ast.AST]) -> Iterator[Mistake]:
    """The model from before it was wrapped, called where the wrapped one has another name."""
    for raw, wrapped, after, word in wrappings(program):
        for step in program.steps:
            call = step.node
            if (
                not isinstance(call, ast.Call)
                or call in reported
                or program.names.order.get(call, 0) < program.names.order.get(after, 0)
            ):
                continue
            if root_name(call.func) != raw or (
                isinstance(call.func, ast.Attribute) and not raw.startswith("self.")
            ):
                continue
            around = program.names.class_around if raw.startswith("self.") else program.names.function_around
            if around(call) is not around(after):
                continue
            if _goes_into_backward(program, step):
                reported.add(call)
                yield Mistake(
                    call,
                    f"the step calls {raw}, the model from before {word} wrapped it, and not {wrapped}",
                    _fix(program, call, wrapped),
                )


def _goes_into_backward(program: Program, step: Step) -> bool:
    """Whether the call stands in the same block of steps as a backward pass, with gradients."""
    if without_gradients(program, step):
        return False
    return any(
        b.where.loops == step.where.loops
        and b.where.stack == step.where.stack
        and program.names.order.get(b.node, 0) > program.names.order.get(step.node, 0)
        and _feeds(program, step.node, b.node)
        for b in program.backwards
    )


def _feeds(program: Program, call: ast.AST, backward: ast.AST) -> bool:
    """Whether the loss depends on the result of the call, through names."""
    if not isinstance(backward, ast.Call) or not isinstance(backward.func, ast.Attribute):
        return False
    return any(part is call for part in calls_behind(program, [backward.func.value, *backward.args]))


def _fix(program: Program, call: ast.Call, instead: str) -> str:
    return with_replaced(program, call.func, instead)


RULE = Rule(
    title="the training step calls the model without its wrapper",
    why=(
        "DDP prepares the exchange of gradients in its own forward, and DeepSpeed in its engine's. A step "
        "that calls `model.module(..)` or the model from before it was wrapped trains on each rank by "
        "itself, without an error."
    ),
    find=_find,
)
