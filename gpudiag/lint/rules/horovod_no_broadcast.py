"""Horovod's ranks that start from different weights."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import behind
from gpudiag.lint.program import Mistake, Program, argument, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.training import optimizer_calls, owner_of_parameters
from gpudiag.model.lint import Severity

_PACKAGES = ("torch", "tensorflow", "tensorflow.keras", "keras")
_BROADCASTS = tuple(
    """
    broadcast_parameters broadcast_variables broadcast_global_variables
    BroadcastGlobalVariablesCallback BroadcastGlobalVariablesHook elastic TorchState
    broadcast_object broadcast_
    """.split()
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner:
        return
    wraps = [
        step
        for package in _PACKAGES
        for name, step in program.calls_within(f"horovod.{package}")
        if name in ("DistributedOptimizer", "DistributedGradientTape")
    ]
    if not wraps or not program.starts_horovod:
        return
    inner = argument(wraps[0].node, 0, "optimizer")
    optimizer = ast.unparse(inner) if isinstance(inner, ast.Name | ast.Attribute) else "optimizer"
    if not program.mentions(*_BROADCASTS, "\\w*broadcast\\w*"):
        yield Mistake(
            wraps[0].node,
            "the ranks start from different weights: rank 0's are never broadcast",
            _broadcast(program, wraps[0].node, optimizer),
            place=behind(program, wraps[0].node),
        )
    elif program.calls("horovod.torch.broadcast_parameters") and not program.mentions(
        "broadcast_optimizer_state", "elastic", "broadcast_object"
    ):
        yield Mistake(
            wraps[0].node,
            (
                "the optimizer's state is not broadcast: after a restart from a checkpoint that rank 0 "
                "reads, the ranks differ"
            ),
            f"hvd.broadcast_optimizer_state({optimizer}, root_rank=0)",
            severity=Severity.NOTE,
            place=behind(program, wraps[0].node),
        )


def _broadcast(program: Program, wrapped: ast.AST, optimizer: str) -> str:
    """The statements that broadcast rank 0's weights and its optimizer's state, for torch or for Keras."""
    models = [step.node for step in optimizer_calls(program)]
    names = [ast.unparse(owner) for made in models if (owner := owner_of_parameters(made)) is not None]
    given = keyword(wrapped, "named_parameters")
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
        names.insert(0, ast.unparse(given.func.value))
    if not program.imports("horovod.torch"):
        return "hvd.broadcast_variables(model.variables, root_rank=0)"
    model = names[0] if names else "model"
    return (
        f"hvd.broadcast_parameters({model}.state_dict(), root_rank=0); "
        f"hvd.broadcast_optimizer_state({optimizer}, root_rank=0)"
    )


RULE = Rule(
    title="Horovod's ranks do not start from the same state",
    why=(
        "Horovod averages gradients and nothing else. Models that start different stay different, and the "
        "averages fit none of them. If only the optimizer's state is not broadcast, it is a note."
    ),
    find=_find,
)
