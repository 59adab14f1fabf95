"""Ranks that meet in different collectives, or name different sources."""

import ast
from collections.abc import Iterator

from gpudiag.lint.arguments import default_of
from gpudiag.lint.collectives import collectives_of
from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Guard, Step
from gpudiag.lint.values import RANKS
from gpudiag.lint.vocabulary import SAME_VALUE_METHODS

_OWN = RANKS | {"rank_text", "local_rank_text"}
_LOCAL = "use_local_synchronization"  # such a group is made by its members alone

_TENSORS = {
    **dict.fromkeys("all_reduce broadcast reduce gather".split(), (0, "tensor")),
    "all_gather": (1, "tensor"),
    "all_gather_into_tensor": (1, "input_tensor"),
}
_DEFAULT_TYPES = {
    **dict.fromkeys("randint randperm".split(), "int64"),
    **dict.fromkeys("zeros ones empty rand randn linspace".split(), "float32"),
}
_TYPES_ALIKE = {"long": "int64", "int": "int32", "float": "float32", "double": "float64", "half": "float16"}
_SOURCES = {
    "broadcast": (1, "src"),
    "broadcast_object_list": (1, "src"),
    "reduce": (1, "dst"),
    "gather": (2, "dst"),
    "scatter": (2, "src"),
}


def _find(program: Program) -> Iterator[Mistake]:
    yield from _find_branches(program)
    yield from _find_groups(program)
    yield from _find_tensors(program)
    reported = set()
    for name, (place, word) in _SOURCES.items():
        for step in program.calls(f"torch.distributed.{name}"):
            given = argument(step.node, place, word)
            kinds = program.values.kinds(given)
            # In a loop, and in an object, a name alone may be that of a rank which the loop goes through.
            is_named = not step.where.loops and not isinstance(given, ast.Attribute)
            own = bool(kinds) and kinds <= (RANKS if is_named else {"rank"})
            if given is None or not own or step.node in reported or program.which_ranks(step) is not None:
                continue
            opposite = {(g.test, not g.holds) for g in step.where.guards}
            others = [g for o in program.calls(f"torch.distributed.{name}") for g in o.where.guards]
            if (
                "group" in ast.unparse(step.node)
                or _is_a_parameter(program, given)
                or any((g.test, g.holds) in opposite for g in others)
            ):
                continue  # who holds the data sends it, and the other branch receives it
            reported.add(step.node)
            yield Mistake(
                step.node,
                f"each rank names itself as the {word} of {name}",
                with_replaced(program, given, "0"),
            )


def _find_tensors(program: Program) -> Iterator[Mistake]:
    """Tensors that have another size or type on each rank."""
    for name, (place, word) in _TENSORS.items():
        for step in program.calls(f"torch.distributed.{name}"):
            given = argument(step.node, place, word)
            if given is None or program.which_ranks(step) is not None:
                continue
            if _is_selected(program, given) and not program.mentions(r"\w*(?:pad|sizes|lengths|max)\w*"):
                message = f"{name} gets as many rows as this rank has kept, and each rank has kept others"
                advice = "all_gather the sizes first, pad to the largest, and cut the padding off afterwards"
                yield Mistake(step.node, message, "", advice=advice)
                return
            ours, theirs = _types_of(program, given)
            if ours and theirs and ours != theirs:
                message = f"{name} gets a tensor of {ours} on one rank, and of {theirs} on the others"
                yield Mistake(step.node, message, "", advice="give both tensors one dtype")
                return


def _is_selected(program: Program, node: ast.expr, depth: int = 4) -> bool:
    """Whether a tensor is what a mask selects, so that its length follows from this rank's data."""
    if isinstance(node, ast.Name) and depth:
        made = program.values.reaching(node)
        value = made[0].value if len(made) == 1 and not made[0].path else None
        return value is not None and _is_selected(program, value, depth - 1)
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if called in ("masked_select", "nonzero", "unique"):
            return True
        inner = node.func.value if isinstance(node.func, ast.Attribute) else node
        return called in SAME_VALUE_METHODS and _is_selected(program, inner, depth)
    if not isinstance(node, ast.Subscript):
        return False
    mask: ast.expr | None = node.slice
    if isinstance(mask, ast.Name):
        made = program.values.reaching(mask)
        mask = made[0].value if len(made) == 1 else None
    return isinstance(mask, ast.Compare)


def _types_of(program: Program, node: ast.expr) -> tuple[str, str]:
    """The types of a tensor that one rank makes in its own branch: there, and on the others; or empty."""
    found = {Which.ONE: "", Which.OTHERS: ""}
    for binding in program.values.reaching(node) if isinstance(node, ast.Name) else ():
        outer = program.names.parents.get(binding.node)
        if not isinstance(outer, ast.If) or binding.value is None:
            return "", ""
        which = program.ranks.of_guard(Guard(outer.test, binding.node in outer.body))
        if which in found:
            found[which] = _type_of(program, binding.value)
    return found[Which.ONE], found[Which.OTHERS]


def _type_of(program: Program, made: ast.expr) -> str:
    """The type of a tensor by the function that makes it: `int64` of `torch.randint`; empty if unknown."""
    while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "cuda":
        made = made.func.value
    name = (program.names.qualify(made.func) or "") if isinstance(made, ast.Call) else ""
    given = keyword(made, "dtype")
    if given is not None:
        shown = ast.unparse(given).removeprefix("torch.")
        return _TYPES_ALIKE.get(shown, shown)
    library, _, function = name.rpartition(".")
    content = argument(made, 0, "data")
    if name == "torch.tensor" and isinstance(content, ast.List):
        kinds = {kind for part in content.elts for kind in program.values.kinds(part)}
        is_length = any(isinstance(n, ast.Call) and getattr(n.func, "id", "") == "len" for n in content.elts)
        return "int64" if kinds == {"int"} or (is_length and kinds <= {"int", "number"}) else ""
    return _DEFAULT_TYPES.get(function, "") if library == "torch" else ""


def _is_a_parameter(program: Program, given: ast.expr) -> bool:
    """Whether a caller outside of this script may choose the source: `def send(obj, rank=0)`."""
    made = program.values.reaching(given) if isinstance(given, ast.Name) else []
    return any(
        isinstance(binding.node, ast.arg)
        and (function := program.names.function_around(binding.node)) is not None
        and default_of(function, binding.node.arg) is not None
        for binding in made
    )


def _find_groups(program: Program) -> Iterator[Mistake]:
    """`new_group(members)` with other members on each rank: all ranks must make all groups."""
    reported = set()
    for step in program.calls("torch.distributed.new_group"):
        given = argument(step.node, 0, "ranks")
        if given is None or step.node in reported or is_constant(keyword(step.node, _LOCAL), True):
            continue
        if program.which_ranks(step) is None and _is_chosen_by_rank(program, given):
            reported.add(step.node)
            message = "each rank makes a group of other members in this call, and the calls do not match"
            advice = "let every rank call new_group for each of the groups, in one order, and keep its own"
            yield Mistake(step.node, message, "", advice=advice)


def _is_chosen_by_rank(program: Program, node: ast.expr, depth: int = 6) -> bool:
    """Whether a value is computed from the rank, or set by an `if` or `while` that asks for it."""
    for part in _parts(program, node):
        if program.values.kinds(part) & _OWN:
            return True
        for binding in program.values.reaching(part) if isinstance(part, ast.Name) else ():
            if _is_under_rank(program, binding.node):
                return True
            # Of a tuple, one part may be the rank and the others not.
            made = binding.value if not binding.path and depth else None
            if made is not None and _is_chosen_by_rank(program, made, depth - 1):
                return True
    return False


def _parts(program: Program, node: ast.AST) -> Iterator[ast.AST]:
    """The parts of an expression, without tests that hold for all ranks: `.. if rank != -1 else ..`."""
    yield node
    test = node.test if isinstance(node, ast.IfExp) else None
    holds_for_all = test is not None and program.ranks.of_guard(Guard(test, True)) is None
    for child in ast.iter_child_nodes(node):
        if child is not test or not holds_for_all:
            yield from _parts(program, child)


def _is_under_rank(program: Program, node: ast.AST) -> bool:
    """Whether an `if` or `while` around a statement, in its function, holds for some of the ranks."""
    for outer in program.names.ancestors(node):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        # A test for a job, such as `rank != -1`, holds for all ranks.
        if (
            isinstance(outer, ast.If | ast.While)
            and any(program.values.kinds(part) & _OWN for part in ast.walk(outer.test))
            and program.ranks.of_guard(Guard(outer.test, True)) is not None
        ):
            return True
    return False


def _find_branches(program: Program) -> Iterator[Mistake]:
    """`if rank == 0: all_reduce .. else: broadcast ..`: the sequences of the two branches differ."""
    by_guard: dict[tuple[ast.expr, bool], list[tuple[str, Step]]] = {}
    for name, step in collectives_of(program):
        if "group" not in ast.unparse(step.node):
            for guard in step.where.guards:
                by_guard.setdefault((guard.test, guard.holds), []).append((name, step))
    for node in program.nodes:
        if not isinstance(node, ast.If) or not node.orelse:
            continue
        ours, theirs = by_guard.get((node.test, True), []), by_guard.get((node.test, False), [])
        if not ours or not theirs or ours[0][0] == theirs[0][0]:
            continue
        which = program.ranks.of(ours[0][1].where)
        if which not in (Which.ONE, Which.OTHERS) or (
            len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
        ):
            continue
        if ours[0][1].where.loops != theirs[0][1].where.loops:
            continue
        names, place = (ours[0][0], theirs[0][0]), _call_in(program, node.orelse, theirs[0][1])
        if place is None:
            continue
        yield Mistake(
            place,
            f"the ranks call different collectives: {names[0]} and {names[1]}",
            with_replaced(program, place, ast.unparse(ours[0][1].node)) if place is theirs[0][1].node else "",
            advice=f"let all ranks call {names[0]} there",
        )


def _call_in(program: Program, block: list[ast.stmt], step: Step) -> ast.Call | None:
    """The call in a block that is a step, or by which a function of this script leads to it."""
    calls = [n for statement in block for n in ast.walk(statement) if isinstance(n, ast.Call)]
    found = [n for n in calls if n is step.node or program.values.function_called(n.func) in step.where.stack]
    return found[0] if found else None


RULE = Rule(
    title="ranks call different collectives, with different tensors, or each as the source",
    why=(
        "The ranks of a group must call the same collectives, in the same order, with the same source and "
        "tensors of one size and type. If not, they hang, or one receives the data of another call."
    ),
    find=_find,
)
