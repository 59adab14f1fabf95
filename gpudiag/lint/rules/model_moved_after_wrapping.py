"""A model that is moved to its GPU, gets new layers or is unfrozen after DDP has wrapped it."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import in_front_of, with_replaced
from gpudiag.lint.program import Mistake, Program, argument, is_constant
from gpudiag.lint.rule import Rule
from gpudiag.lint.training import makes_layers, root_name

_ADDS = frozenset("add_module register_module register_parameter append insert extend".split())


def _find(program: Program) -> Iterator[Mistake]:
    if program.ddp_steps:
        yield from _find_replaced(program)
        yield from _find_unfrozen(program)
        yield from _find_moved(program)


def _find_replaced(program: Program) -> Iterator[Mistake]:
    """New layers in a wrapped model: `model.module.fc = ..`, `model.module.add_module(..)`, `setattr`."""
    for node in program.nodes:
        for holder, new in _additions(node):
            if _is_inside(program, holder) and makes_layers(program, new):
                what = "replaced" if isinstance(node, ast.Assign) else "added"
                message = (
                    f"a layer is {what} after DDP has wrapped the model: DDP does not exchange its gradients"
                )
                advice = "build it before the model is wrapped, and build the optimizer afterwards"
                yield Mistake(node, message, "", advice=advice)


def _additions(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What gets a new part by a statement or a call, and the part."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        yield node.targets[0].value, node.value
    elif isinstance(node, ast.Call) and node.args:
        if isinstance(node.func, ast.Name) and node.func.id == "setattr" and len(node.args) == 3:
            yield node.args[0], node.args[2]
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS:
            yield node.func.value, node.args[-1]


def _is_inside(program: Program, holder: ast.expr) -> bool:
    """Whether an expression is a model that DDP has wrapped, by either name, or a part of it."""
    return _path_inside(program, holder) is not None and not _is_wrapped_later(program, holder)


def _path_inside(program: Program, node: ast.expr) -> str | None:
    """The place of an expression in a wrapped model, such as `.layer4`; None where it is in none."""
    parts: list[str] = []
    outer = node
    while isinstance(outer, ast.Attribute | ast.Subscript):
        if (
            isinstance(outer, ast.Attribute)
            and outer.attr == "module"
            and program.values.kinds(outer.value) == {"ddp"}
        ):
            return "".join(reversed(parts))
        if _raw_name_wrapped(program, outer):
            return "".join(reversed(parts))
        parts.append(
            f".{outer.attr}" if isinstance(outer, ast.Attribute) else f"[{ast.unparse(outer.slice)}]"
        )
        outer = outer.value
    if program.values.kinds(outer) == {"ddp"} or _raw_name_wrapped(program, outer):
        return "".join(reversed(parts))
    return None


def _raw_name_wrapped(program: Program, node: ast.expr) -> ast.Call | None:
    """The call of DDP that has wrapped a model, by the name that the model had before."""
    for step in program.ddp_steps:
        maker, given = step.node, argument(step.node, 0, "module")
        made = program.names.statement_of(maker)
        if not isinstance(maker, ast.Call) or given is None or not isinstance(made, ast.Assign):
            continue
        order, name = program.names.order, ast.unparse(node)
        around = program.names.class_around if name.startswith("self.") else program.names.function_around
        if (
            ast.unparse(given) != name
            or ast.unparse(made.targets[0]) == name
            or around(node) is not around(maker)
            or order.get(node, 0) < order.get(maker, 0)
        ):
            continue
        bound = program.values.reaching(node) if isinstance(node, ast.Name | ast.Attribute) else []
        if not any(order.get(binding.node, 0) > order.get(maker, 0) for binding in bound):
            return maker
    return None


def _is_wrapped_later(program: Program, node: ast.AST) -> bool:
    """Whether DDP wraps a model again after a change: then it knows all parameters."""
    order, around = program.names.order, program.names.function_around
    return any(
        order.get(step.node, 0) > order.get(node, 0) and around(step.node) is around(node)
        for step in program.ddp_steps
    )


def _find_unfrozen(program: Program) -> Iterator[Mistake]:
    """Parameters that were frozen when DDP wrapped the model, and are trained later."""
    order = program.names.order
    for step in program.ddp_steps:
        root = root_name(_converted(argument(step.node, 0, "module")))
        if root is None or _is_wrapped_later(program, step.node):
            continue
        before: list[tuple[str, bool, bool]] = []
        for node, holder, trains, when in _freezings(program):
            if program.names.function_around(node) is not program.names.function_around(step.node):
                continue
            if order.get(node, 0) < order.get(step.node, 0):
                path = _path_from(holder, root)
                if path is not None:
                    before.append((path, trains, when))
                continue
            inside = _path_inside(program, holder) if trains else None
            frozen = [
                path
                for path, was_trained, sometimes in before
                if not was_trained
                and inside is not None
                and _overlap(path, inside)
                and not (sometimes and when)
            ]
            known = any(was and _is_within(inside, path) for path, was, _ in before if inside is not None)
            if frozen and not known:
                message = (
                    "parameters are unfrozen after DDP has wrapped the model: it does not exchange their "
                    "gradients"
                )
                advice = "unfreeze them before DDP wraps the model, or wrap the model again afterwards"
                yield Mistake(node, message, "", advice=advice)
                return


def _freezings(program: Program) -> Iterator[tuple[ast.AST, ast.expr, bool, bool]]:
    """Where parameters are frozen or trained: the node, what they belong to, which, and whether of some."""
    for node in program.nodes:
        target: ast.expr | None = None
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            if node.targets[0].attr == "requires_grad" and is_constant(node.value, True, False):
                target, trains = node.targets[0].value, is_constant(node.value, True)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "requires_grad_"
            and all(is_constant(part, True, False) for part in node.args)
        ):
            target, trains = node.func.value, not (node.args and is_constant(node.args[0], False))
        if target is None:
            continue
        loop = next((a for a in program.names.ancestors(node) if isinstance(a, ast.For)), None)
        taken = loop.iter if loop is not None and "parameter" in program.values.kinds(target) else None
        if loop is not None and isinstance(taken, ast.Call) and isinstance(taken.func, ast.Attribute):
            of_some = any(
                isinstance(a, ast.If)
                for a in program.names.ancestors(node)
                if loop in program.names.ancestors(a)
            )
            yield node, taken.func.value, trains, of_some
        elif isinstance(node, ast.Call) and taken is None:
            yield node, target, trains, False


def _converted(node: ast.expr | None) -> ast.expr | None:
    """The model of `convert_sync_batchnorm(model).cuda()`."""
    while isinstance(node, ast.Call):
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda", "train")
        node = (
            node.func.value if is_method and isinstance(node.func, ast.Attribute) else (*node.args, None)[0]
        )
    return node


def _path_from(holder: ast.expr, root: str) -> str | None:
    text = ast.unparse(holder)
    return text[len(root) :] if (text == root or text.startswith(f"{root}.")) else None


def _overlap(one: str, two: str) -> bool:
    return _is_within(one, two) or _is_within(two, one)


def _is_within(part: str, whole: str) -> bool:
    return part == whole or not whole or part.startswith((f"{whole}.", f"{whole}["))


def _find_moved(program: Program) -> Iterator[Mistake]:
    for name in ("to", "cuda"):
        for step in program.methods.get(name, []):
            call = step.node
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            wrapped = call.func.value
            maker = _raw_name_wrapped(program, wrapped)
            if isinstance(wrapped, ast.Attribute) and wrapped.attr == "module":
                wrapped = wrapped.value
            values = program.values.of(wrapped)
            makers = (
                [maker]
                if maker is not None
                else [
                    value.node for value in values if value.kind == "ddp" and isinstance(value.node, ast.Call)
                ]
            )
            if not makers or (maker is None and any(value.kind != "ddp" for value in values)):
                continue
            if not _is_a_device(program, call) or any(_was_moved(program, made) for made in makers):
                continue
            yield _mistake(program, makers[0], call)
            return


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
    title="a model is moved, gets a layer or is unfrozen after DDP has wrapped it",
    why=(
        "DDP sorts the parameters into buckets when it is built, and exchanges the gradients of those that "
        "it found, on their device. On the CPU, NCCL cannot exchange them, and with device_ids DDP refuses "
        "the model. It never exchanges the gradients of parameters that are new, or were frozen then: each "
        "rank trains its own."
    ),
    find=_find,
)
