"""A learning rate that does not follow the number of Horovod's ranks."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.training import optimizer_calls


def _find(program: Program) -> Iterator[Mistake]:
    wraps = [
        step
        for package in ("torch", "tensorflow", "tensorflow.keras", "keras")
        for name, step in program.calls_within(f"horovod.{package}")
        if name in ("DistributedOptimizer",)
    ]
    if (
        not wraps
        or not program.starts_horovod
        or program.owner
        or program.mentions("Adasum", "lr_scaler", "base_lr", "linear_scaling", "scale_lr")
        or _scales(program)
    ):
        return
    for call in _optimizers(program):
        rate = keyword(call, "lr") or keyword(call, "learning_rate") or _placed_rate(call)
        message = "the learning rate is the same for any number of ranks"
        if rate is None:
            yield Mistake(call, message, "", advice="give the optimizer the rate times hvd.size()")
            return
        shown = f"({ast.unparse(rate)})" if isinstance(rate, ast.BinOp | ast.IfExp) else ast.unparse(rate)
        yield Mistake(call, message, with_replaced(program, rate, f"{shown} * hvd.size()"))
        return


def _optimizers(program: Program) -> Iterator[ast.Call]:
    for step in optimizer_calls(program):
        if isinstance(step.node, ast.Call) and argument(step.node, 1, "lr") is not None:
            yield step.node
    for name, step in program.calls_within("tensorflow.keras.optimizers"):
        if name[:1].isupper() and isinstance(step.node, ast.Call):
            yield step.node


def _placed_rate(call: ast.Call) -> ast.expr | None:
    place = 1 if any("parameters" in ast.unparse(a) for a in call.args[:1]) else 0
    return call.args[place] if len(call.args) > place else None


def _scales(program: Program) -> bool:
    """Whether any product or quotient uses the number of ranks, or a function that may scale gets it."""
    for node in program.nodes:
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(
            node.op, ast.Mult | ast.Div | ast.FloorDiv | ast.Pow
        ):
            sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
            if any(program.values.depends_on(side, frozenset({"world_size"})) for side in sides):
                return True
            if "batch" in ast.unparse(node) and isinstance(node.op, ast.Div | ast.FloorDiv):
                return True  # the batch of all ranks, divided among them
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
            "sqrt",
            "LearningRateWarmupCallback",
        ):
            return True
    return False


RULE = Rule(
    title="the learning rate does not grow with the number of Horovod's ranks",
    why=(
        "Horovod averages over all ranks, so the batch grows with them. With the learning rate of one GPU, "
        "training makes fewer steps in the same number of epochs and learns less. Usual remedy: multiply "
        "the rate by hvd.size(), with a warm-up."
    ),
    find=_find,
)
