"""The corrected code: a statement with one part replaced, or the right place of a statement."""

import ast
from collections.abc import Sequence

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.trace import Guard
from gpudiag.model.lint import Place

# A `return` that leaves its condition would end the function for all.
_MOVABLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)


def with_replaced(program: Program, node: ast.AST, text: str) -> str:
    """The statement around a node, on one line, with `text` in its place; of a block, its first line."""
    statement = program.names.statement_of(node)
    if statement is None:
        raise ValueError("a node of the script stands in no statement")
    copied = _copied(statement, node, ast.parse(text, mode="eval").body)
    if not hasattr(copied, "body"):
        return ast.unparse(ast.fix_missing_locations(copied))
    for name, empty in (("body", [ast.Pass()]), ("orelse", []), ("decorator_list", [])):
        if hasattr(copied, name):
            setattr(copied, name, empty)
    return ast.unparse(ast.fix_missing_locations(copied)).rsplit("\n", 1)[0]


def with_keyword(program: Program, call: ast.Call, name: str, value: str) -> str:
    """The statement around a call, with one more keyword in the call, or another value of one that it has."""
    given = next((k.value for k in call.keywords if k.arg == name), None)
    if given is not None:
        return with_replaced(program, given, value)
    added = ast.keyword(name, ast.parse(value, mode="eval").body)
    return with_replaced(program, call, ast.unparse(ast.Call(call.func, call.args, [*call.keywords, added])))


def _copied(node: ast.AST, old: ast.AST, new: ast.expr) -> ast.AST:
    """A copy of a tree with one of its nodes replaced; the tree itself stays as it is."""
    if node is old:
        return new
    fields: dict[str, object] = {}
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            fields[name] = [_copied(v, old, new) if isinstance(v, ast.AST) else v for v in value]
        else:
            fields[name] = _copied(value, old, new) if isinstance(value, ast.AST) else value
    return type(node)(**fields)


def in_front_of(
    program: Program, node: ast.AST, *, moves: ast.AST | None = None, needs: Sequence[ast.AST] | None = None
) -> Place | None:
    """The place in front of the statement around a node, for a statement that is added.

    With `moves`, a node of the statement that goes there: None across blocks, or where what it needs
    (`needs`, if not all) is made in between.
    """
    statement = program.names.statement_of(node)
    if moves is None:
        return _place(program, statement) if statement is not None else None
    moved, target, block = _in_one_block(program, moves, node)
    if moved is None or target is None or block.index(target) > block.index(moved):
        return None
    between = block[block.index(target) : block.index(moved)]
    needed = {name for part in (needs if needs is not None else [moved]) for name in _names(part, ast.Load)}
    return None if needed & _bound_by(between) else _place(program, target, moves=True)


def behind(program: Program, node: ast.AST, *, moves: ast.AST | None = None) -> Place | None:
    """The place behind the statement around a node; with `moves` as `in_front_of` has it."""
    statement = program.names.statement_of(node)
    if moves is None:
        return _place(program, statement, behind=True) if statement is not None else None
    moved, target, block = _in_one_block(program, moves, node)
    if moved is None or target is None or block.index(target) < block.index(moved):
        return None
    between = block[block.index(moved) + 1 : block.index(target) + 1]
    is_needed = any(_names(s, ast.Load) & _bound_by([moved]) for s in between)
    return None if is_needed else _place(program, target, behind=True, moves=True)


def out_of(program: Program, node: ast.AST, guard: Guard) -> Place | None:
    """The place behind the `if` around a statement that must leave it; None where it is nested deeper."""
    statement = program.names.statement_of(node)
    around = program.names.parents.get(statement) if statement is not None else None
    if (
        not isinstance(around, ast.If)
        or around.test is not guard.test
        or not isinstance(statement, _MOVABLE)
        or (isinstance(program.names.parents.get(around), ast.If) and _is_elif(program, around))
    ):
        return None
    block = around.body if statement in around.body else around.orelse
    later = block[block.index(statement) + 1 :]
    if around.orelse or any(_names(s, ast.Load) & _bound_by([statement]) for s in later):
        return None
    if _names(statement, ast.Load) & _bound_by(block):  # only the ranks in the block have what it needs
        return None
    return _place(program, around, behind=True, moves=True)


def at_end(program: Program, node: ast.AST) -> Place | None:
    """The place behind the last statement of the block around a node, for a statement that is added."""
    block = _block_of(program, program.names.statement_of(node))
    if not block:
        return None
    if isinstance(block[-1], ast.Return):
        return in_front_of(program, block[-1])
    return _place(program, block[-1], behind=True)


def moved(program: Program, node: ast.AST, message: str, place: Place | None, advice: str) -> Mistake:
    """The mistake of a misplaced statement, with its right place, or advice where there is no single one."""
    if place is None:
        return Mistake(node, message, "", advice=advice)
    return Mistake(node, message, program.statement_text(node), place=place)


def first_in(program: Program, loop: ast.For | ast.AsyncFor | ast.While) -> Place:
    """The place in front of the first statement in a loop."""
    return _place(program, loop.body[0])


def _place(program: Program, statement: ast.stmt, *, behind: bool = False, moves: bool = False) -> Place:
    """The place in front of a statement, or behind it, at its indentation."""
    first = program.line_at(statement.lineno)
    column = first.shift + program.column_of(statement.lineno, statement.col_offset)
    if not behind:
        return Place(first.number, column, moves)
    return Place(program.line_at(statement.end_lineno or statement.lineno).number + 1, column, moves)


def _in_one_block(
    program: Program, moves: ast.AST, node: ast.AST
) -> tuple[ast.stmt | None, ast.stmt | None, list[ast.stmt]]:
    """The statement that moves, the one of its block that has the node, and the block.

    It is None where no statement can move.
    """
    moved = program.names.statement_of(moves)
    block = _block_of(program, moved)
    target = next((s for s in block if s is node or any(inner is node for inner in ast.walk(s))), None)
    return (moved if isinstance(moved, _MOVABLE) else None), target, block


def _block_of(program: Program, statement: ast.stmt | None) -> list[ast.stmt]:
    parent = program.names.parents.get(statement) if statement is not None else None
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return []


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {
        ast.unparse(n)
        for n in ast.walk(node)
        if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, context)
    }


def _bound_by(statements: list[ast.stmt]) -> set[str]:
    """The names that statements give a value."""
    return {name for statement in statements for name in _names(statement, ast.Store)}


def _is_elif(program: Program, node: ast.If) -> bool:
    parent = program.names.parents.get(node)
    return isinstance(parent, ast.If) and parent.orelse == [node]
