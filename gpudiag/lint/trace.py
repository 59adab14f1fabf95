"""The order in which a script would execute its statements, and the conditions and calls around each."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpudiag.lint.names import Function, Names
from gpudiag.lint.values import Values

MAX_STEPS = 20_000  # of one script; later ones are not traced
_MAX_DEPTH = 8
_MAX_VISITS = 6  # of one function

Loop = ast.For | ast.AsyncFor | ast.While
# Python 3.10 has no `except*`; its node has the fields of a try.
_TRIES: tuple[type[ast.Try], ...] = (ast.Try, getattr(ast, "TryStar", ast.Try))
_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A condition under which something runs, and whether it must hold or not."""

    test: ast.expr
    holds: bool


@dataclass(frozen=True, slots=True, eq=False)
class Where:
    """What surrounds a step, over all calls that lead to it, from the outermost in."""

    guards: tuple[Guard, ...] = ()
    withs: tuple[ast.expr, ...] = ()
    loops: tuple[Loop, ...] = ()
    stack: tuple[Function, ...] = ()
    entry: Function | None = (
        None  # a function that nothing in the script calls; None from the script's beginning
    )
    spawned: bool = False  # in a function that was passed to another, which may start processes
    handling: bool = False  # in a handler of an exception
    decorators: tuple[ast.expr, ...] = ()  # of the functions of the stack


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A statement or a call that the script executes, and what surrounds it."""

    node: ast.AST
    where: Where

    @property
    def receiver(self) -> ast.expr | None:
        """The object whose method the step calls; None of any other step."""
        func = self.node.func if isinstance(self.node, ast.Call) else None
        return func.value if isinstance(func, ast.Attribute) else None


def trace_script(values: Values) -> list[Step]:
    """The steps from the script's beginning, then from each function that nothing in it calls."""
    return _Tracer(values).trace()


class _Tracer:
    def __init__(self, values: Values) -> None:
        self._values = values
        self._names = values.names
        self._visits: dict[Function, int] = {}
        self._steps: list[Step] = []

    def trace(self) -> list[Step]:
        self._block(self._names.tree.body, Where())
        # What nothing calls comes first: it leads to the others, with what surrounds them.
        for function in sorted(self._names.functions, key=self._values.callers.__contains__):
            if isinstance(function, ast.Lambda) or self._visits.get(function):
                continue
            self._visits[function] = self._visits.get(function, 0) + 1
            decorators = tuple(function.decorator_list)
            self._block(function.body, Where(stack=(function,), entry=function, decorators=decorators))
        return self._steps

    def _add(self, node: ast.AST, where: Where) -> None:
        if len(self._steps) < MAX_STEPS:
            self._steps.append(Step(node, where))

    def _block(self, body: list[ast.stmt], where: Where) -> None:
        for statement in body:
            if len(self._steps) >= MAX_STEPS:
                return
            self._statement(statement, where)
            if isinstance(statement, _JUMPS):
                return
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                left = tuple(self._leavers(statement.value))
                where = replace(where, guards=(*where.guards, *left)) if left else where
            if isinstance(statement, ast.If):
                ends, other_ends = _leaves(statement.body), _leaves(statement.orelse)
                if ends and not other_ends:
                    where = replace(where, guards=(*where.guards, Guard(statement.test, False)))
                elif other_ends and not ends:
                    where = replace(where, guards=(*where.guards, Guard(statement.test, True)))

    def _leavers(self, call: ast.Call) -> Iterator[Guard]:
        """The conditions under which a function of this script ends the process: the other ranks go on."""
        function = self._values.function_called(call.func)
        for inner in function.body if isinstance(function, ast.FunctionDef) else ():
            if isinstance(inner, ast.If) and not inner.orelse and _ends_the_process(inner.body):
                yield Guard(inner.test, False)

    def _statement(self, node: ast.stmt, where: Where) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                self._expression(decorator, where)
        elif isinstance(node, ast.ClassDef):
            self._block(
                [s for s in node.body if not isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)], where
            )
        elif isinstance(node, ast.If):
            self._expression(node.test, where)
            self._block(node.body, replace(where, guards=(*where.guards, Guard(node.test, True))))
            self._block(node.orelse, replace(where, guards=(*where.guards, Guard(node.test, False))))
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._loop(node, where)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self._expression(item.context_expr, where)
                self._add(item, where)
            inside = (*where.withs, *(item.context_expr for item in node.items))
            self._block(node.body, replace(where, withs=inside))
        elif isinstance(node, _TRIES):
            self._block(node.body, where)
            for handler in node.handlers:
                self._block(handler.body, replace(where, handling=True))
            self._block(node.orelse, where)
            self._block(node.finalbody, where)
        elif isinstance(node, ast.Match):
            self._expression(node.subject, where)
            for case in node.cases:
                self._block(case.body, replace(where, guards=(*where.guards, *_guards_of(node, case))))
        else:
            self._simple(node, where)

    def _simple(self, node: ast.stmt, where: Where) -> None:
        for child in self._names.children.get(node, ()):
            if isinstance(child, ast.expr):
                self._expression(child, where)
        self._add(node, where)

    def _loop(self, node: Loop, where: Where) -> None:
        self._expression(node.test if isinstance(node, ast.While) else node.iter, where)
        self._add(node, where)
        self._block(node.body, replace(where, loops=(*where.loops, node)))
        self._block(node.orelse, where)

    def _expression(self, node: ast.expr | ast.AST, where: Where) -> None:
        """Add the calls in an expression, in the order in which they are made."""
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.IfExp):
            self._expression(node.test, where)
            self._expression(node.body, replace(where, guards=(*where.guards, Guard(node.test, True))))
            self._expression(node.orelse, replace(where, guards=(*where.guards, Guard(node.test, False))))
            return
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._expression(value, where)
                where = replace(where, guards=(*where.guards, Guard(value, isinstance(node.op, ast.And))))
            return
        for child in self._names.children.get(node, ()):
            self._expression(child, where)
        if isinstance(node, ast.Call):
            self._add(node, where)
            self._enter(node, where)

    def _enter(self, call: ast.Call, where: Where) -> None:
        """Trace into the function of this script that is called, or passed to the called function."""
        function = self._values.function_called(call.func)
        if function is not None:
            self._inside(function, where)
            return
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(argument, ast.Name | ast.Attribute):
                passed = self._values.function_of(argument)
                if passed is not None:
                    # The called function runs its argument, in ranks (mp.spawn, a launcher) or here.
                    self._inside(passed, replace(where, spawned=True))

    def _inside(self, function: Function, where: Where) -> None:
        visits = self._visits.get(function, 0)
        if function in where.stack or len(where.stack) >= _MAX_DEPTH or visits >= _MAX_VISITS:
            return
        if isinstance(function, ast.Lambda):
            return
        self._visits[function] = visits + 1
        decorators = (*where.decorators, *function.decorator_list)
        self._block(function.body, replace(where, stack=(*where.stack, function), decorators=decorators))


def _guards_of(node: ast.Match, case: ast.match_case) -> Iterator[Guard]:
    """The condition of a case: its own value, or that none of the cases before it holds."""
    for other in node.cases[: node.cases.index(case)]:
        if isinstance(other.pattern, ast.MatchValue):
            yield Guard(_compared_with(node.subject, other.pattern.value), False)
    if isinstance(case.pattern, ast.MatchValue):
        yield Guard(_compared_with(node.subject, case.pattern.value), True)
    elif not (isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None):
        yield Guard(node.subject, True)
    if case.guard is not None:
        yield Guard(case.guard, True)


def _compared_with(subject: ast.expr, value: ast.expr) -> ast.Compare:
    return ast.copy_location(ast.Compare(subject, [ast.Eq()], [value]), value)


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether no path through the block reaches the statement after it."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, _JUMPS):
        return True
    if isinstance(last, ast.If):
        return _leaves(last.body) and _leaves(last.orelse)
    return _ends_the_process(body)


def _ends_the_process(body: list[ast.stmt]) -> bool:
    """Whether a block ends by an exit."""
    last = body[-1]
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        return False
    func = last.value.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name in ("exit", "_exit", "quit", "abort")


def statements_of(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a block, those within others too."""
    for statement in body:
        yield statement
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                yield from statements_of([child])


def following(names: Names, statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements after one in its block."""
    outer = names.parents.get(statement)
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(outer, block, None)
        if isinstance(statements, list) and statement in statements:
            yield from statements[statements.index(statement) + 1 :]
