"""A model that is moved to its GPU after DDP has wrapped it."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.corrections import in_front_of, with_replaced
from gpudiag.lint.program import Mistake, Program, is_constant
from gpudiag.lint.rule import Rule
from gpudiag.lint.training import root_name

_LAYERS = re.compile(
    r"(?:Linear|Conv[123]d|Embedding|LayerNorm|BatchNorm[123]d|Sequential|Parameter|LSTM|GRU)"
)


def _find(program: Program) -> Iterator[Mistake]:
    for node in program.nodes:
        if isinstance(node, ast.Assign) and _replaces_a_layer(program, node):
            yield Mistake(
                node,
                "a layer is replaced after DDP has wrapped the model: DDP does not exchange its gradients",
                "",
                advice="replace it before the model is wrapped, and build the optimizer afterwards",
            )
    for name in ("to", "cuda"):
        for step in program.methods.get(name, []):
            call = step.node
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            wrapped = call.func.value
            if isinstance(wrapped, ast.Attribute) and wrapped.attr == "module":
                wrapped = wrapped.value
            values = program.values.of(wrapped)
            if not values or any(value.kind != "ddp" for value in values) or not _is_a_device(program, call):
                continue
            makers = [value.node for value in values if isinstance(value.node, ast.Call)]
            if any(_was_moved(program, maker) for maker in makers):
                continue
            yield _mistake(program, makers[0], call)
            return


def _replaces_a_layer(program: Program, made: ast.Assign) -> bool:
    """Whether an assignment puts a new layer with parameters into a DDP model.

    `model.module.fc = ..` does, and so does `model.module[0] = ..`.
    """
    layers = (
        call
        for call in ast.walk(made.value)
        if isinstance(call, ast.Call)
        and (program.names.qualify(call.func) or "").startswith("torch.nn.")
        and _LAYERS.fullmatch((program.names.qualify(call.func) or "").rpartition(".")[2])
    )
    target = made.targets[0]
    outer = target.value if isinstance(target, ast.Attribute | ast.Subscript) else None
    while isinstance(outer, ast.Attribute | ast.Subscript) and getattr(outer, "attr", None) != "module":
        outer = outer.value
    return isinstance(outer, ast.Attribute) and program.values.kinds(outer.value) == {"ddp"} and any(layers)


def _is_a_device(program: Program, call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
        return True
    if len(call.args) != 1 or is_constant(call.args[0], "cpu"):
        return False
    text = ast.unparse(call.args[0])
    return not any(word in text for word in ("dtype", "float", "half", "cpu", "memory_format"))


def _was_moved(program: Program, maker: ast.Call) -> bool:
    """Whether the wrapped model was on a device before; then moving it again changes nothing."""
    if not maker.args:
        return True
    inner = maker.args[0]
    root = root_name(inner)
    if root is None and not isinstance(inner, ast.Call):
        return True
    for node in ast.walk(inner):
        if isinstance(node, ast.Attribute) and node.attr in ("to", "cuda"):
            return True
    if any(k.arg == "device" for n in ast.walk(inner) if isinstance(n, ast.Call) for k in n.keywords):
        return True
    if program.mentions("set_default_device", "set_default_tensor_type"):
        return True
    if not program.values.kinds(inner) <= {"module"}:
        return True
    for name in ("to", "cuda"):
        for step in program.methods.get(name, []):
            func = step.node.func if isinstance(step.node, ast.Call) else None
            before = program.names.order.get(step.node, 0) < program.names.order.get(maker, 0)
            if (
                isinstance(func, ast.Attribute)
                and root_name(func.value) == root
                and before
                and root is not None
            ):
                return True
    for binding in program.values.reaching(inner) if isinstance(inner, ast.Name | ast.Attribute) else ():
        text = ast.unparse(binding.value) if binding.value is not None else ""
        if ".to(" in text or ".cuda(" in text or "device" in text:
            return True
    return False


def _mistake(program: Program, maker: ast.Call, call: ast.Call) -> Mistake:
    message = "the model is moved after DDP has wrapped it"
    method = call.func.attr if isinstance(call.func, ast.Attribute) else "to"
    inner = maker.args[0]
    to_device = f"{ast.unparse(inner)}.{method}({', '.join(ast.unparse(a) for a in call.args)})"
    if program.names.statement_of(maker) is program.names.statement_of(call):
        wrapped = ast.unparse(
            ast.Call(maker.func, [ast.parse(to_device, mode="eval").body, *maker.args[1:]], maker.keywords)
        )
        return Mistake(call, message, with_replaced(program, call, wrapped))
    place = in_front_of(program, maker, moves=call, needs=call.args)
    if place is None or not isinstance(inner, ast.Name | ast.Attribute):
        return Mistake(call, message, "", advice=f"give DDP the model that is there already: {to_device}")
    return Mistake(call, message, f"{ast.unparse(inner)} = {to_device}", place=place)


RULE = Rule(
    title="a model is moved to its device after DDP has wrapped it",
    why=(
        "DDP sorts the parameters into buckets and exchanges them on the device that they are on when it is "
        "built. On the CPU, NCCL cannot exchange them, and with device_ids DDP refuses the model."
    ),
    find=_find,
)
