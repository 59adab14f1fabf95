"""The loops that train, the loaders they read, and how often they run."""

import ast
import re
from collections.abc import Iterator, Sequence

from gpudiag.lint.arguments import argument_of
from gpudiag.lint.origins import calls_behind
from gpudiag.lint.program import Program, argument, is_constant, keyword
from gpudiag.lint.trace import Loop, Step

_AROUND = frozenset(
    "enumerate tqdm trange track iter islice auto notebook tqdm_notebook progress_bar log_every".split()
)
# Layers with parameters.
_LAYERS = re.compile(
    r"(?:Linear|Conv[123]d|Embedding|LayerNorm|BatchNorm[123]d|Sequential|Parameter|LSTM|GRU)"
)
_SHARED_MODELS = frozenset({"ddp", "fsdp1", "engine", "prepared", "inner"})


def iterated(node: ast.expr) -> ast.expr:
    """The iterable of a loop, without the `enumerate` or the progress bar around it."""
    while isinstance(node, ast.Call) and node.args:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in _AROUND:
            break
        node = node.args[0]
    return node


def loaders_of(program: Program, loop: Loop) -> list[ast.Call]:
    """The calls of DataLoader whose batches a loop takes."""
    taken = [call.args[0] for call in program.nexts if _loop_around(program, call) is loop]
    if isinstance(loop, ast.For | ast.AsyncFor):
        taken.append(iterated(loop.iter))
    values = {value for node in taken for value in program.values.of(node) if value.kind == "loader"}
    return [value.node for value in values if isinstance(value.node, ast.Call)]


def _loop_around(program: Program, node: ast.AST) -> ast.AST | None:
    """The innermost loop in which a node stands, in its own function."""
    for outer in program.names.ancestors(node):
        if isinstance(outer, ast.For | ast.AsyncFor | ast.While):
            return outer
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
    return None


def training_loaders(program: Program) -> Iterator[tuple[ast.Call, Loop, Step]]:
    """Each loader whose batches go into a backward pass, with the loop over it and that pass."""
    seen = set()
    for step in program.backwards:
        if _trains_alone(program, step):
            continue
        for loop in step.where.loops:
            for loader in loaders_of(program, loop):
                if (loader, loop) not in seen:
                    seen.add((loader, loop))
                    yield loader, loop, step


def _trains_alone(program: Program, step: Step) -> bool:
    """Whether the ranks do not share the model of a backward pass, in a file that also has a shared one."""
    call = step.node
    if not program.ddp_steps or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    behind = calls_behind(program, [call.func.value, *call.args])
    called = [program.values.kinds(other.func) for other in behind]
    return frozenset({"module"}) in called and not any(kinds & _SHARED_MODELS for kinds in called)


def repeats(program: Program, loop: Loop) -> bool:
    """Whether a loop may run more than once: all do but `range(1)`."""
    if isinstance(loop, ast.While):
        return True
    over = iterated(loop.iter)
    if (
        isinstance(over, ast.Call)
        and getattr(over.func, "id", "") in ("range", "trange")
        and len(over.args) == 1
    ):
        return not _is_one(program, over.args[0])
    return not (isinstance(over, ast.Tuple | ast.List) and len(over.elts) < 2)


def _is_one(program: Program, node: ast.expr) -> bool:
    if is_constant(node, 0, 1):
        return True
    values = program.values.of(node)
    return bool(values) and all(value.kind == "int" and is_constant(value.node, 0, 1) for value in values)


def sampler_of(loader: ast.Call) -> ast.expr | None:
    """The sampler that a loader is given, by its name or its place."""
    return argument(loader, 3, "sampler")


def batch_sampler_of(loader: ast.Call) -> ast.expr | None:
    """The batch sampler that a loader is given."""
    return argument(loader, 4, "batch_sampler")


def samples_by_rank(program: Program, node: ast.expr | None) -> list[ast.Call]:
    """The calls of DistributedSampler that an expression may hold."""
    if node is None:
        return []
    return [v.node for v in program.values.of(node) if v.kind == "sampler" and isinstance(v.node, ast.Call)]


def shuffles(sampler: ast.Call) -> bool:
    """Whether a DistributedSampler shuffles: by default it does."""
    return not is_constant(argument(sampler, 3, "shuffle"), False)


def optimizer_calls(program: Program) -> list[Step]:
    """The steps that build an optimizer of torch."""
    return [
        step
        for name, step in program.calls_within("torch.optim")
        if name[:1].isupper()
        and isinstance(step.node, ast.Call)
        and program.values.is_only(step.node, "optimizer")
    ]


def is_optimizer(program: Program, node: ast.expr | None) -> bool:
    """Whether an expression holds an optimizer, by what made it or by its name."""
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    kinds = program.values.kinds(node)
    return bool(kinds & {"optimizer", "hvd_optimizer"}) or name in ("optimizer", "optim", "opt")


def owner_of_parameters(optimizer: ast.AST) -> ast.expr | None:
    """`model` of `Adam(model.parameters())`, with lists, filters and groups around it looked through."""
    given = argument(optimizer, 0, "params")
    if given is None:
        return None
    if isinstance(given, ast.Call) and given.args and "group" in ast.unparse(given.func):
        return given.args[0]  # `param_groups(model, decay)`
    for node in ast.walk(given):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("parameters", "named_parameters")
        ):
            return node.func.value
    return None


def makes_layers(program: Program, node: ast.expr) -> bool:
    """Whether an expression builds layers of torch that have parameters, also in a list or a Sequential."""
    names = (program.names.qualify(n.func) or "" for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(name.startswith("torch.nn.") and _LAYERS.fullmatch(name.rpartition(".")[2]) for name in names)


def root_name(node: ast.AST | None) -> str | None:
    """The first name of `model.module.fc`, of `self.model` the whole; None of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return f"self.{node.attr}"
        return root_name(node.value)
    return None


def wrappings(program: Program) -> Iterator[tuple[str, str, ast.AST, str]]:
    """The name of a model, the other name of what wraps it, and where."""
    for step in program.ddp_steps:
        statement = program.names.statement_of(step.node)
        if isinstance(statement, ast.Assign) and statement.value is step.node:
            raw, wrapped = root_name(argument(step.node, 0, "module")), ast.unparse(statement.targets[0])
            is_name = raw == ast.unparse(argument(step.node, 0, "module") or step.node)
            if raw and raw != wrapped and is_name and not _rebound(program, raw, step.node):
                yield raw, wrapped, step.node, "DDP"
    for step in program.calls("deepspeed.initialize"):
        statement = program.names.statement_of(step.node)
        given = keyword(step.node, "model") or argument(step.node, 1, "model")
        if isinstance(statement, ast.Assign) and isinstance(given, ast.Name):
            target = statement.targets[0]
            first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
            wrapped = ast.unparse(first)
            if wrapped not in (given.id, "_") and not _rebound(program, given.id, step.node):
                yield given.id, wrapped, step.node, "deepspeed.initialize"


def _rebound(program: Program, name: str, after: ast.AST) -> bool:
    """Whether the name gets another value after the wrapping."""
    statement = program.names.statement_of(after) or after
    later = program.names.order.get(statement, 0)
    bindings = [
        *program.names.scope_of(after).bindings.get(name, []),
        *(binding for _, binding in program.names.attributes.get(name, [])),
    ]
    return any(program.names.order.get(b.node, 0) > later and not b.parameter for b in bindings)


def runs_beside(program: Program, step: Step, others: Sequence[Step]) -> bool:
    """Whether a step is of the same process and run as one of the others, or as its object's `__init__`."""
    return any(
        other.where.spawned == step.where.spawned
        and (other.where.entry is step.where.entry or _made_before(program, other, step))
        for other in others
    )


def _made_before(program: Program, other: Step, step: Step) -> bool:
    """Whether a step is of a method, and the other of the `__init__` that made the method's object."""
    made, entry = other.where.entry, step.where.entry
    if entry is None or getattr(made, "name", "") != "__init__":
        return False
    return program.names.class_around(entry) is program.names.class_around(made or entry) is not None


Root = tuple[object, str]  # of a name: the scope that it comes from


def roots_through_calls(program: Program, step: Step, node: ast.expr | None) -> set[Root]:
    """Where an expression's first name comes from, and what callers give for it where it is a parameter."""
    roots = _root(program, node)
    if isinstance(node, ast.Name) and step.where.stack:
        function = step.where.stack[-1]
        for call in program.values.callers.get(function, []):
            roots |= _root(program, argument_of(function, node.id, call))
    return roots


def _root(program: Program, node: ast.expr | None) -> set[Root]:
    name = root_name(node)
    if node is None or name is None:
        return set()
    first = next((part for part in ast.walk(node) if isinstance(part, ast.Name)), None)
    scope = program.names.find_scope(first) if first is not None and not name.startswith("self.") else None
    return {(scope.node if scope is not None else None, name)}


def without_gradients(program: Program, step: Step) -> bool:
    """Whether a step stands under torch.no_grad or inference_mode, or in a function so decorated or named."""
    words = " ".join(ast.unparse(item) for item in step.where.withs)
    if "no_grad" in words or "inference_mode" in words or "set_grad_enabled" in words:
        return True
    for function in step.where.stack:
        decorators = " ".join(ast.unparse(d) for d in getattr(function, "decorator_list", []))
        name = getattr(function, "name", "")
        if "no_grad" in decorators or "inference_mode" in decorators:
            return True
        if any(word in name.lower() for word in ("eval", "valid", "test", "infer", "predict", "sample")):
            return True
    return False


def keyword_node(call: ast.AST, name: str) -> ast.keyword | None:
    """The keyword of a call, with its place."""
    if not isinstance(call, ast.Call):
        return None
    return next((k for k in call.keywords if k.arg == name), None)


def is_stage_3(program: Program) -> bool:
    """Whether a configuration of DeepSpeed in this script shards the parameters: `"stage": 3`."""
    return any(
        isinstance(node, ast.Dict)
        and any(
            isinstance(key, ast.Constant) and key.value == "stage" and is_constant(value, 3)
            for key, value in zip(node.keys, node.values, strict=True)
        )
        for node in program.nodes
    )
