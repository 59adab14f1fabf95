"""Ranks that meet in different collectives, or name different sources."""

import ast
from collections.abc import Iterator

from gpudiag.lint.collectives import collectives_of
from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.values import RANKS

_SOURCES = {
    "broadcast": (1, "src"),
    "broadcast_object_list": (1, "src"),
    "reduce": (1, "dst"),
    "gather": (2, "dst"),
    "scatter": (2, "src"),
}


def _find(program: Program) -> Iterator[Mistake]:
    yield from _find_branches(program)
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
