"""A rank that stays text where a number is needed."""

import ast
from collections.abc import Iterator

from gpudiag.lint.arguments import argument_name
from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.ranks import is_stand_in
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import DDP_CLASSES, INIT, SAMPLER
from gpudiag.model.lint import Edit

_TEXTS = frozenset({"rank_text", "local_rank_text", "world_size_text"})


def _find(program: Program) -> Iterator[Mistake]:
    reported: set[ast.AST] = set()
    for use, where in _uses(program):
        values = [v for v in program.values.of(use) if v.kind != "none" and not is_stand_in(v.node)]
        if not values or any(value.kind not in _TEXTS for value in values):
            continue
        for value in values:
            made = value.node
            if not isinstance(made, ast.expr) or made in reported:
                continue
            reported.add(made)
            yield _mistake(program, made, where)


def _uses(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """The expressions that must be numbers, and what needs them."""
    for step in program.calls("torch.cuda.set_device", "torch.accelerator.set_device_index"):
        given = argument(step.node, 0, "device")
        if given is not None:
            yield given, "torch.cuda.set_device"
    for step in program.calls(*sorted(DDP_CLASSES)):
        ids = keyword(step.node, "device_ids")
        if isinstance(ids, ast.List | ast.Tuple):
            for part in ids.elts:
                yield part, "device_ids"
    for step in program.calls("torch.device"):
        if isinstance(step.node, ast.Call) and len(step.node.args) == 2:
            yield step.node.args[1], "torch.device"
    for step in program.methods.get("cuda", []):
        if isinstance(step.node, ast.Call) and step.node.args:
            yield step.node.args[0], "cuda()"
    for step in program.calls(INIT):
        for name in ("rank", "world_size"):
            given = keyword(step.node, name)
            if given is not None:
                yield given, f"init_process_group({name}=)"
    for step in program.calls(SAMPLER):
        for name in ("rank", "num_replicas"):
            given = keyword(step.node, name)
            if given is not None:
                yield given, f"DistributedSampler({name}=)"
    for node in program.nodes:
        if (
            isinstance(node, ast.Compare)
            and len(node.ops) == 1
            and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Lt | ast.Gt | ast.LtE | ast.GtE)
        ):
            sides = (node.left, node.comparators[0])
            for one, other in (sides, sides[::-1]):
                if isinstance(other, ast.Constant) and type(other.value) is int:
                    yield one, f"the comparison `{ast.unparse(node)}`"


def _mistake(program: Program, made: ast.expr, where: str) -> Mistake:
    if (
        isinstance(made, ast.Call)
        and isinstance(made.func, ast.Attribute)
        and made.func.attr == "add_argument"
    ):
        name = argument_name(made)
        fixed = ast.Call(
            made.func,
            made.args,
            [*(k for k in made.keywords if k.arg != "type"), ast.keyword("type", ast.Name("int"))],
        )
        text = with_replaced(program, made, ast.unparse(fixed))
        edits: tuple[Edit, ...] = ()
        if made.end_lineno is not None and made.end_col_offset and _ends_plainly(program, made):
            edits = program.edit_span(
                made.end_lineno, made.end_col_offset - 1, made.end_col_offset - 1, ", type=int"
            )
        return Mistake(made, f"--{name} has no type, so it is text, and {where} needs a number", text, edits)
    text = ast.unparse(made)
    if isinstance(made, ast.Call) and len(made.args) > 1 and is_constant(made.args[1], None):
        return Mistake(
            made, f"{text} is text, and {where} needs a number", with_replaced(program, made, f"int({text})")
        )
    edits = program.edit(made, f"int({text})")
    shown = program.edited_line(edits) if edits else with_replaced(program, made, f"int({text})")
    return Mistake(made, f"{text} is text, and {where} needs a number", shown, edits)


def _ends_plainly(program: Program, made: ast.Call) -> bool:
    """Whether a keyword can be put in front of the closing bracket: no comma stands there."""
    line = program.line_at(made.end_lineno or 1).text.encode()[: (made.end_col_offset or 1) - 1].rstrip()
    return bool(line) and not line.endswith(b",") and not any(k.arg == "type" for k in made.keywords)


RULE = Rule(
    title="a rank or world size is text where a number is needed",
    why=(
        "An argument without a type and a variable of the environment are text. torch refuses text as a "
        "device, and `rank == 0` is never true, so the code for rank 0 never runs."
    ),
    find=_find,
    fixes=True,
)
