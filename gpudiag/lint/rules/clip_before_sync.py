"""Gradients that are clipped before they are complete, or while they are scaled."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import behind, moved, with_replaced
from gpudiag.lint.origins import calls_behind
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import is_optimizer

_CLIPS = (
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.nn.utils.clip_grad_norm",
)
_UNSCALES = ("unscale_", "unscale_gradients", "unscale_grads")


def _find(program: Program) -> Iterator[Mistake]:
    reported = set()
    for step in program.calls(*_CLIPS):
        if step.node in reported or program.owner:
            continue
        found = _judge(program, step)
        if found is not None:
            reported.add(step.node)
            yield found
    yield from _find_steps(program)


def _find_steps(program: Program) -> Iterator[Mistake]:
    """Optimizer steps on gradients that a GradScaler has scaled, or that no backward pass averaged."""
    steps = program.methods.get("step", [])
    stepped = [s for s in steps if "scaler" in program.values.kinds(s.receiver) and s.where.loops]
    if stepped and not program.owner and not program.mentions("update\\w*", "\\w*update"):
        yield Mistake(
            stepped[0].node,
            "the GradScaler is never updated: its second step raises a RuntimeError",
            f"{program.statement_text(stepped[0].node)}; {_scaler_name(program)}.update()",
        )
    own = next((step for step in steps if is_optimizer(program, step.receiver)), None)
    by_scaler = any("scaler" in program.values.kinds(step.receiver) or _has_arguments(step) for step in steps)
    scales = any("scaler" in program.values.kinds(s.receiver) for s in program.methods.get("scale", []))
    if own is None or own.receiver is None or program.owner:
        return
    yield from _find_shifted(program, own)
    yield from _find_flags(program)
    if scales and not by_scaler and not program.mentions(*_UNSCALES):
        optimizer = ast.unparse(own.receiver)
        yield Mistake(
            own.node,
            "the optimizer steps with gradients that the GradScaler has scaled",
            with_replaced(program, own.node, f"{_scaler_name(program)}.step({optimizer})"),
        )
    elif program.backwards and not program.mentions("all_reduce") and all(map(_is_apart, program.backwards)):
        yield Mistake(
            own.node,
            "every backward pass runs under no_sync(): the gradients are never averaged over the ranks",
            "",
            advice="leave no_sync() for the last backward pass before each step of the optimizer",
        )


def _find_flags(program: Program) -> Iterator[Mistake]:
    """`model.require_backward_grad_sync` that is set between the forward and the backward pass."""
    order = program.names.order
    for step in program.steps:
        target = step.node.targets[0] if isinstance(step.node, ast.Assign) else None
        if not isinstance(target, ast.Attribute) or target.attr != "require_backward_grad_sync":
            continue
        if program.values.kinds(target.value) != {"ddp"} or not step.where.loops:
            continue
        passes = [b for b in program.backwards if b.where.loops == step.where.loops]
        forwards = [
            call
            for b in passes
            if isinstance(b.node, ast.Call) and b.receiver is not None
            for call in calls_behind(program, [b.receiver])
            if program.values.kinds(call.func) == {"ddp"}
        ]
        if forwards and all(order[c] < order[step.node] < order[b.node] for c in forwards for b in passes):
            message = (
                "DDP reads this flag in its forward, which came before: it holds for the next round only"
            )
            yield Mistake(step.node, message, "", advice="set it before the model is called")
            return


def _find_shifted(program: Program, stepped: Step) -> Iterator[Mistake]:
    """A no_sync() whose count leaves out the backward pass that comes before the optimizer's step."""
    counts = [count for g in stepped.where.guards if g.holds and (count := _round_of(g.test))]
    for node in program.nodes:
        if not isinstance(node, ast.IfExp | ast.If) or not counts:
            continue
        apart = [node.body] if isinstance(node, ast.IfExp) else node.body
        if not any(
            isinstance(n, ast.Attribute) and n.attr == "no_sync" for part in apart for n in ast.walk(part)
        ):
            continue
        synced = _round_of(ast.UnaryOp(ast.Not(), node.test))
        if synced is None or synced[:2] != counts[-1][:2] or synced[2] == counts[-1][2]:
            continue
        counted = next(
            (n for n in ast.walk(node.test) if isinstance(n, ast.Name) and n.id == synced[0]), None
        )
        made = program.values.reaching(counted) if counted is not None else []
        if len(made) == 1 and isinstance(made[0].node, ast.For) and made[0].node in stepped.where.loops:
            message = (
                "no_sync() leaves out the last backward pass before the step: the ranks do not average it"
            )
            advice = f"synchronise where the optimizer steps: {ast.unparse(stepped.where.guards[-1].test)}"
            yield Mistake(node, message, "", advice=advice)
            return


def _round_of(test: ast.expr) -> tuple[str, str, int] | None:
    """The rounds in which a test holds: the counter, how many make a step, and which of them it is."""
    holds = True
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, not holds
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.BinOp):
        return None
    left, right = test.left, test.comparators[0]
    is_round = isinstance(test.ops[0], ast.Eq) is holds and isinstance(test.ops[0], ast.Eq | ast.NotEq)
    if not isinstance(left.op, ast.Mod) or not is_round:
        return None
    counter, shift, steps = left.left, 0, ast.unparse(left.right)
    if isinstance(counter, ast.BinOp) and isinstance(counter.op, ast.Add) and is_constant(counter.right, 1):
        counter, shift = counter.left, -1
    if ast.unparse(right) == f"{steps} - 1":
        shift -= 1
    elif not is_constant(right, 0):
        return None
    return (counter.id, steps, shift) if isinstance(counter, ast.Name) else None


def _has_arguments(step: Step) -> bool:
    return isinstance(step.node, ast.Call) and bool(step.node.args)


def _is_apart(step: Step) -> bool:
    """Whether a backward pass always stands under `model.no_sync()`."""
    contexts = [item for item in step.where.withs if isinstance(item, ast.Call)]
    return any(getattr(item.func, "attr", "") == "no_sync" for item in contexts)


def _judge(program: Program, step: Step) -> Mistake | None:
    call, text = step.node, program.statement_text(step.node)
    message = "the gradients are clipped while they are still scaled"
    later = _unscaled_later(program, step)
    if _is_scaled(program, step) and later is not None:
        place = behind(program, later.node, moves=step.node)
        return moved(program, step.node, message, place, "clip them after unscale_")
    if _is_scaled(program, step):
        scaler = _scaler_name(program)
        optimizer = _stepped(program, scaler)
        return Mistake(step.node, message, f"{scaler}.unscale_({optimizer}); {text}")
    halves = (keyword(made.node, "mixed_precision") for made in program.calls("accelerate.Accelerator"))
    is_halved = any(is_constant(half, "fp16") for half in halves) and not program.mentions(*_UNSCALES)
    if is_halved and isinstance(call, ast.Call):
        return Mistake(call, message, with_replaced(program, call.func, "accelerator.clip_grad_norm_"))
    reduced = _reduced_later(program, step)
    if reduced is not None:
        return moved(
            program,
            step.node,
            "the gradients are clipped before they are averaged over the ranks",
            behind(program, reduced.node, moves=step.node),
            "clip them after the all_reduce",
        )
    if _is_horovod(program, step):
        return Mistake(
            step.node,
            "the gradients are clipped before Horovod has averaged them",
            f"optimizer.synchronize(); {text}",
        )
    if program.values.kinds(_model_of(step)) == {"fsdp1"}:
        model, limit = _model_of(step), argument(step.node, 1, "max_norm")
        return Mistake(
            step.node,
            "each rank clips by the norm of its own shard",
            with_replaced(
                program,
                step.node,
                f"{ast.unparse(model) if model else 'model'}"
                f".clip_grad_norm_({ast.unparse(limit) if limit else '1.0'})",
            ),
        )
    return None


def _scaler_name(program: Program) -> str:
    receivers = (step.receiver for step in program.methods.get("scale", []))
    return next((ast.unparse(receiver) for receiver in receivers if receiver is not None), "scaler")


def _stepped(program: Program, scaler: str) -> str:
    for step in program.methods.get("step", []):
        given = argument(step.node, 0, "optimizer")
        if given is not None and step.receiver is not None and ast.unparse(step.receiver) == scaler:
            return ast.unparse(given)
    return "optimizer"


def _unscaled_later(program: Program, step: Step) -> Step | None:
    """The one call of unscale_, where it follows the clipping in the same block."""
    undone = program.methods.get("unscale_", [])
    if (
        len(undone) != 1
        or undone[0].where.loops != step.where.loops
        or undone[0].where.stack != step.where.stack
    ):
        return None
    return undone[0] if program.steps.index(undone[0]) > program.steps.index(step) else None


def _is_scaled(program: Program, step: Step) -> bool:
    """Whether a GradScaler's step follows in the same loop, and nothing ever unscales."""
    if (program.mentions(*_UNSCALES) and not _unscaled_later(program, step)) or program.uses_accelerate:
        return False
    for other in program.methods.get("step", []):
        call = other.node
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        depth = len(other.where.stack)
        if other.where.loops[-1:] != step.where.loops[-1:] or step.where.stack[:depth] != other.where.stack:
            continue
        if "scaler" not in program.values.kinds(call.func.value):
            continue
        apart = {(ast.unparse(g.test), g.holds) for g in other.where.guards}
        if not any((ast.unparse(g.test), not g.holds) in apart for g in step.where.guards):
            return True
    return False


def _reduced_later(program: Program, step: Step) -> Step | None:
    """The all_reduce of gradients that follows, before the optimizer's step; None where there is none."""
    place = program.steps.index(step)
    for other in program.steps[place + 1 :]:
        call = other.node
        if not isinstance(call, ast.Call) or other.where.entry is not step.where.entry:
            continue
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("step", "backward")
            and other.where.loops[:1] == step.where.loops[:1]
        ):
            return None
        if program.names.qualify(call.func) == "torch.distributed.all_reduce":
            given = argument(call, 0, "tensor")
            if given is not None and ("grad" in program.values.kinds(given) or ".grad" in ast.unparse(given)):
                return other
            return None
    return None


def _is_horovod(program: Program, step: Step) -> bool:
    """Whether Horovod's optimizer is to average in its step, which follows in the same loop."""
    if program.mentions("synchronize", "skip_synchronize") or not program.averages_by_horovod:
        return False
    return any(
        b.where.loops == step.where.loops
        and program.names.order.get(b.node, 0) < program.names.order.get(step.node, 0)
        for b in program.backwards
    )


def _model_of(step: Step) -> ast.expr | None:
    given = argument(step.node, 0, "parameters")
    if (
        isinstance(given, ast.Call)
        and isinstance(given.func, ast.Attribute)
        and given.func.attr == "parameters"
    ):
        return given.func.value
    return None


RULE = Rule(
    title="gradients are clipped or used before they are complete, or while they are scaled",
    why=(
        "A limit on the norm has no meaning for gradients that are still multiplied by the GradScaler, not "
        "yet averaged over the ranks, or only this rank's shard: nearly everything is clipped, or each rank "
        "clips differently. An optimizer that uses such gradients takes steps that are far too large, or "
        "another one on each rank."
    ),
    find=_find,
)
