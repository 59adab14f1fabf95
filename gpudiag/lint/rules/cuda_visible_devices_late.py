"""CUDA_VISIBLE_DEVICES set when CUDA has already been used."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import in_front_of
from gpudiag.lint.program import Mistake, Program, is_constant
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step

_USES = frozenset(
    """
    torch.cuda.set_device torch.cuda.current_device torch.cuda.get_device_name torch.cuda.is_available
    torch.cuda.get_device_properties torch.cuda.init torch.cuda.synchronize torch.cuda.mem_get_info
    torch.cuda.get_device_capability
    """.split()
)


def _find(program: Program) -> Iterator[Mistake]:
    used: Step | None = None
    reported: set[ast.AST] = set()
    for step in program.steps:
        if step.where.entry is not None and (used is None or used.where.entry is not step.where.entry):
            used = None  # what ran before is not known
        if used is None or used.where.spawned is not step.where.spawned:
            used = step if uses_cuda(program, step.node) else None
        elif _sets_variable(program, step) and _follows(used, step) and step.node not in reported:
            reported.add(step.node)
            where = program.line_at(getattr(used.node, "lineno", 1)).number
            place = in_front_of(program, used.node, moves=step.node)
            yield Mistake(
                step.node,
                f"CUDA_VISIBLE_DEVICES is set after CUDA was used in line {where}, and has no effect there",
                program.statement_text(step.node) if place is not None else "",
                place=place,
                advice="" if place is not None else f"set it before line {where}, or on the command line",
            )


def uses_cuda(program: Program, node: ast.AST) -> bool:
    """Whether a call surely uses a GPU: of torch.cuda, or one that moves something there."""
    if not isinstance(node, ast.Call):
        return False
    if program.names.qualify(node.func) in _USES:
        return True
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "cuda":
        return program.names.qualify(node.func) is None
    return node.func.attr == "to" and bool(node.args) and _is_cuda(program, node.args[0])


def _is_cuda(program: Program, node: ast.expr) -> bool:
    """Whether a device is surely a GPU: `cuda`, `cuda:1`, or torch.device of it."""
    texts = []
    for value in program.values.of(node):
        made = value.node
        if value.kind == "device" and isinstance(made, ast.Call) and made.args:
            made = made.args[0]
        texts.append(made.value if isinstance(made, ast.Constant) else None)
    return bool(texts) and all(isinstance(text, str) and text.startswith("cuda") for text in texts)


def _sets_variable(program: Program, step: Step) -> bool:
    node = step.node
    if isinstance(node, ast.Assign):
        return any(
            isinstance(target, ast.Subscript)
            and program.names.qualify(target.value) == "os.environ"
            and is_constant(target.slice, "CUDA_VISIBLE_DEVICES")
            for target in node.targets
        )
    if isinstance(node, ast.Call) and program.names.qualify(node.func) == "os.environ.update":
        return "CUDA_VISIBLE_DEVICES" in ast.unparse(node)
    return (
        isinstance(node, ast.Call)
        and program.names.qualify(node.func) in ("os.putenv", "os.environ.setdefault")
        and bool(node.args)
        and is_constant(node.args[0], "CUDA_VISIBLE_DEVICES")
    )


def _follows(first: Step, later: Step) -> bool:
    """Whether every path to the later step passes the first: its conditions hold there too."""
    have = {(ast.unparse(guard.test), guard.holds) for guard in later.where.guards}
    return not first.where.handling and all(
        (ast.unparse(g.test), g.holds) in have for g in first.where.guards
    )


RULE = Rule(
    title="CUDA_VISIBLE_DEVICES is set after CUDA was used",
    why=(
        "The driver reads the variable once, when CUDA starts in the process. Set later it has no effect: "
        "the ranks keep their GPUs."
    ),
    find=_find,
)
