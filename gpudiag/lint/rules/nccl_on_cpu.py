"""NCCL with tensors on the CPU."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.rule import Rule

_MAKERS = frozenset(
    "torch.tensor torch.zeros torch.ones torch.empty torch.rand torch.randn torch.full torch.arange".split()
)
_ON_GPUS = tuple(
    r"""
    cuda gpu\w* device_ids? set_default_device set_default_tensor_type npu xpu hpu musa
    accelerator init_device_mesh
    """.split()
)
_COLLECTIVES = {"all_reduce": 0, "broadcast": 0, "reduce": 0, "all_gather": 1, "gather": 0, "scatter": 0}


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner or program.uses_accelerate:
        return
    opened = [
        step for step in program.opens_group if is_constant(argument(step.node, 0, "backend"), "nccl", "NCCL")
    ]
    if not opened or len(opened) != len(program.opens_group):
        return
    if _never_uses_gpus(program):
        call = opened[0].node
        backend = argument(call, 0, "backend")
        fix = with_replaced(program, backend, "'gloo'") if backend is not None else ""
        yield Mistake(call, "backend nccl, but this script puts nothing on a GPU", fix)
        return
    if program.mentions("set_default_device", "set_default_tensor_type"):
        return
    reported = set()
    for name, place in _COLLECTIVES.items():
        for step in program.calls(f"torch.distributed.{name}"):
            made = _made_on_cpu(program, argument(step.node, place, "tensor"))
            if made is not None and step.node not in reported and keyword(step.node, "group") is None:
                reported.add(step.node)
                yield Mistake(
                    step.node,
                    f"{name} of a tensor on the CPU, which NCCL cannot exchange",
                    "",
                    advice=f"make it on the GPU of the rank: {_on_a_device(made)}",
                )


def _on_a_device(made: ast.Call) -> str:
    keywords = [*(k for k in made.keywords if k.arg != "device"), ast.keyword("device", ast.Name("device"))]
    return ast.unparse(ast.Call(made.func, made.args, keywords))


def _never_uses_gpus(program: Program) -> bool:
    """Whether nothing in the script can move a model to a GPU, and it trains or communicates here."""
    if program.mentions(*_ON_GPUS) or not program.script.whole:
        return False
    moves = [step for step in program.methods.get("to", []) if not _to_cpu(program, step.node)]
    return (
        not moves
        and bool(program.ddp_steps)
        and all(
            program.values.is_only(argument(step.node, 0, "module"), "module") for step in program.ddp_steps
        )
    )


def _to_cpu(program: Program, call: ast.AST) -> bool:
    given = argument(call, 0, "device")
    values = program.values.of(given)
    return bool(values) and all(
        is_constant(v.node, "cpu")
        or (isinstance(v.node, ast.Call) and v.node.args and is_constant(v.node.args[0], "cpu"))
        for v in values
    )


def _made_on_cpu(program: Program, given: ast.expr | None) -> ast.Call | None:
    """The call that makes a tensor without a device, where nothing moves the tensor later."""
    made = given
    if isinstance(given, ast.Name):
        bindings = program.values.reaching(given)
        if len(bindings) != 1 or bindings[0].path:
            return None
        made = bindings[0].value
    if not isinstance(made, ast.Call) or program.names.qualify(made.func) not in _MAKERS:
        return None
    return (
        None
        if any(k.arg in ("device", None) and not is_constant(k.value, "cpu") for k in made.keywords)
        else made
    )


RULE = Rule(
    title="NCCL is used for tensors on the CPU",
    why=(
        "NCCL exchanges GPU memory only: DDP or the collective fails with `No backend type associated with "
        "device type cpu`. Put the tensor on the rank's GPU, or use gloo."
    ),
    find=_find,
)
