"""Two ranks that both receive first, or both send first."""

import ast
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step

_BLOCKING = {
    f"torch.distributed.{name}": name for name in ("send", "recv", "send_object_list", "recv_object_list")
}
_OTHERS = frozenset(
    {"torch.distributed.isend", "torch.distributed.irecv", "torch.distributed.batch_isend_irecv"}
)


def _find(program: Program) -> Iterator[Mistake]:
    calls: dict[ast.AST, tuple[str, Step]] = {
        step.node: (_BLOCKING[name].removesuffix("_object_list"), step)
        for step in program.steps
        if isinstance(step.node, ast.Call) and (name := program.names.qualify(step.node.func)) in _BLOCKING
    }
    if not calls or program.calls(*sorted(_OTHERS)):
        return
    yield from _find_in_branches(program, calls)
    yield from _find_on_all(program, calls)


def _find_in_branches(program: Program, calls: dict[ast.AST, tuple[str, Step]]) -> Iterator[Mistake]:
    """`if rank == 0: recv .. send ..` and `else: recv .. send ..`."""
    for node in program.nodes:
        if not isinstance(node, ast.If) or not node.orelse or not _is_about_ranks(program, node.test):
            continue
        ours, theirs = (_in_order(program, body, calls) for body in (node.body, node.orelse))
        if {word for word, _ in ours} < {"send", "recv"} or {word for word, _ in theirs} < {"send", "recv"}:
            continue  # one of the two only gives, or only takes
        first, second = ours[0], theirs[0]
        if first[0] == second[0]:
            yield _mistake(
                first[0],
                second[1],
                f"here and in line {program.line_at(getattr(first[1], 'lineno', 1)).number}",
            )


def _find_on_all(program: Program, calls: dict[ast.AST, tuple[str, Step]]) -> Iterator[Mistake]:
    """A send and a receive that every rank makes in the same order."""
    seen: set[ast.AST | None] = set()
    for node, (word, step) in calls.items():
        home = step.where.stack[-1] if step.where.stack else None
        if home in seen or program.which_ranks(step) is not None or step.where.handling:
            continue
        if any(program.ranks.lets_some_through(guard) for guard in step.where.guards):
            continue
        seen.add(home)
        later = [
            other
            for other, (their_word, their_step) in calls.items()
            if their_word != word
            and their_step.where.stack == step.where.stack
            and [g.test for g in their_step.where.guards] == [g.test for g in step.where.guards]
        ]
        if later:
            yield _mistake(word, node, "on every rank")


def _mistake(word: str, node: ast.AST, where: str) -> Mistake:
    if word == "recv":
        message = (
            f"the ranks receive before they send, {where}: each waits for data that no rank has sent yet"
        )
    else:
        message = (
            f"the ranks send before they receive, {where}: a send may wait until the other rank receives"
        )
    return Mistake(
        node,
        message,
        "",
        advice="let the even ranks send first and the odd ones receive first, or use dist.batch_isend_irecv",
    )


def _is_about_ranks(program: Program, test: ast.expr) -> bool:
    return "rank" in ast.unparse(test).lower() or any(
        program.values.kinds(part) & {"rank", "local_rank", "spawn_index"}
        for part in ast.walk(test)
        if isinstance(part, ast.Name | ast.Attribute | ast.Call)
    )


def _in_order(
    program: Program, body: list[ast.stmt], calls: dict[ast.AST, tuple[str, Step]]
) -> list[tuple[str, ast.AST]]:
    found = [node for statement in body for node in ast.walk(statement) if node in calls]
    return [(calls[node][0], node) for node in sorted(found, key=lambda n: program.names.order.get(n, 0))]


# Source: torch's documentation of point-to-point communication.
RULE = Rule(
    title="two ranks both receive first, or both send first",
    why=(
        "send and recv wait for the other side. If both ranks receive first, no rank ever sends. If both "
        "send first, it depends on buffers whether a send returns: under NCCL, and for large tensors under "
        "gloo, it does not."
    ),
    find=_find,
)
