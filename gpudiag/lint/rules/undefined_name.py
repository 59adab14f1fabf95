"""A device, rank or model by a name that nothing in the script defines."""

import ast
import builtins
import difflib
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, keyword
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Guard, following
from gpudiag.lint.training import owner_of_parameters
from gpudiag.lint.vocabulary import CONVENTIONAL_NAMES, DDP_CLASSES

_KNOWN = frozenset(
    (*dir(builtins), *"__file__ __name__ __doc__ __builtins__ get_ipython display exit spark dbutils".split())
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.names.stars or program.mentions("exec", "globals", "locals", "vars") or not _is_whole(program):
        return
    yield from _find_on_one_rank(program)
    if not (
        program.opens_group
        or program.ddp_steps
        or program.uses_horovod
        or program.calls("torch.nn.DataParallel")
    ):
        return
    reported = set()
    for node, what in _uses(program):
        if (
            not isinstance(node, ast.Name)
            or node.id in program.names.bound
            or node.id in _KNOWN
            or node.id in reported
        ):
            continue
        if not program.script.whole and node.id in CONVENTIONAL_NAMES:
            continue
        near = difflib.get_close_matches(node.id, sorted(program.names.bound), n=1, cutoff=0.6)
        if not near:
            near = [
                name
                for name in sorted(program.names.bound)
                if name.startswith(node.id) or node.id.startswith(name)
            ][:1]
        if not program.script.whole and not near:
            continue
        reported.add(node.id)
        meant = f"; did you mean {near[0]}?" if near else ""
        message = f"{node.id}, the {what}, is not defined{meant}"
        if near:
            yield Mistake(node, message, with_replaced(program, node, near[0]))
        else:
            yield Mistake(node, message, "", advice=f"give {node.id} a value before this line")


def _find_on_one_rank(program: Program) -> Iterator[Mistake]:
    """Names that a block of one rank alone binds, read after it by all ranks."""
    always = {
        step.node for step in program.steps if program.which_ranks(step) is None and not step.where.handling
    }
    reported = set()
    for outer in program.nodes:
        if not isinstance(outer, ast.If) or outer.orelse:
            continue
        if program.ranks.of_guard(Guard(outer.test, True)) not in (Which.ONE, Which.OTHERS):
            continue
        inside = {node for part in outer.body for node in ast.walk(part)}
        for later in following(program.names, outer):
            if later not in always or hasattr(later, "body"):
                continue
            for name in (n for n in _read_surely(later) if isinstance(n, ast.Name)):
                bindings = program.names.bindings_of(name)
                if bindings and name.id not in reported and all(b.node in inside for b in bindings):
                    reported.add(name.id)
                    line = program.line_at(outer.lineno).number
                    yield Mistake(
                        name,
                        f"{name.id} has a value on the ranks of the condition in line {line} alone",
                        "",
                        advice=f"give {name.id} a value on the other ranks too, in an else branch",
                    )


def _read_surely(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that are evaluated whenever it runs."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node
    if not isinstance(
        node, ast.IfExp | ast.BoolOp | ast.Lambda | ast.comprehension | ast.ListComp | ast.GeneratorExp
    ):
        for child in ast.iter_child_nodes(node):
            yield from _read_surely(child)


def _is_whole(program: Program) -> bool:
    """Whether every definition is visible: cells that do not parse, or fences of sketches, may hide one."""
    return program.script.kind == "script" or bool(program.tree.body)


def _uses(program: Program) -> Iterator[tuple[ast.expr, str]]:
    for name in ("to", "cuda"):
        for step in program.methods.get(name, []):
            if isinstance(step.node, ast.Call) and len(step.node.args) == 1:
                yield step.node.args[0], "device"
    for step in program.calls("torch.cuda.set_device"):
        if isinstance(step.node, ast.Call) and step.node.args:
            yield step.node.args[0], "device"
    for step in program.calls(*sorted(DDP_CLASSES), "torch.nn.DataParallel"):
        ids = keyword(step.node, "device_ids")
        if isinstance(ids, ast.List):
            yield from ((part, "device") for part in ids.elts)
        if isinstance(step.node, ast.Call) and step.node.args:
            yield step.node.args[0], "model"
    for step in program.calls("torch.distributed.init_process_group"):
        for word in ("rank", "world_size"):
            given = keyword(step.node, word)
            if given is not None:
                yield given, word.replace("_", " ")
    for _, step in program.calls_within("torch.optim"):
        owner = owner_of_parameters(step.node)
        if owner is not None:
            yield owner, "model of the optimizer"


RULE = Rule(
    title="a name is not defined, or on one rank alone",
    why=(
        "The script ends with a NameError at this line, often after the data has been loaded on every rank."
        " Where one rank alone has the name, the others end, and that rank waits for them."
    ),
    find=_find,
)
