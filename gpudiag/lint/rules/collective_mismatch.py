"""Ranks that meet in different collectives, or name different sources."""

import ast
from collections.abc import Iterator

from gpudiag.lint.collectives import collectives_of
from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, is_constant, keyword
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Guard, Step
from gpudiag.lint.values import RANKS

_OWN = RANKS | {"rank_text", "local_rank_text"}
_LOCAL = "use_local_synchronization"  # such a group is made by its members alone

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
            if "group" in ast.unparse(step.node) or any((g.test, g.holds) in opposite for g in others):
                continue  # who holds the data sends it, and the other branch receives it
            reported.add(step.node)
            yield Mistake(
                step.node,
                f"each rank names itself as the {word} of {name}",
                with_replaced(program, given, "0"),
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
    title="ranks call different collectives, or each names itself as the source",
    why=(
        "The ranks of a group must call the same collectives, in the same order, with the same source. If "
        "not, they hang, or one receives the data of another call."
    ),
    find=_find,
)
