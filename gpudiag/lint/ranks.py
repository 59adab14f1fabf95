"""Which ranks a condition lets through: one, all but one, or nobody can tell."""

import ast
import re

from gpudiag.compat import StrEnum
from gpudiag.lint.trace import Guard, Where
from gpudiag.lint.values import RANKS, Values

_PERHAPS = re.compile(
    r"rank|main|master|primary|chief|leader|zero|saver|writer|logger|wandb|proc|node|gpu|local|dist|world|ddp|multi|parallel"
    r"|horovod|hvd|first|root|shard|fsdp|coordinator|should_|verbose",
    re.IGNORECASE,
)
_ONE_AT_A_TIME = re.compile(r"first|zero|main|master|lock|local|rank|once|barrier|sequential", re.IGNORECASE)
_SOME = frozenset({"rank", "local_rank"})
_DEPTH = 6


class Which(StrEnum):
    """The ranks for which a condition holds."""

    ONE = "one"  # rank 0, or another single one; of each machine too
    OTHERS = "others"
    PERHAPS = "perhaps"  # it may have to do with ranks


class RankConditions:
    """What the conditions of one script say about ranks."""

    def __init__(self, values: Values) -> None:
        """Of the script whose expressions hold these values."""
        self._values = values
        self._known: dict[tuple[ast.AST, bool], Which | None] = {}

    def of(self, where: Where) -> Which | None:
        """The ranks that come to a place; None where nothing says that it is not all of them."""
        found = {self.of_guard(guard) for guard in where.guards}
        for wanted in (Which.ONE, Which.OTHERS, Which.PERHAPS):
            if wanted in found:
                return wanted
        return (
            Which.PERHAPS if any(_ONE_AT_A_TIME.search(ast.unparse(item)) for item in where.withs) else None
        )

    def of_guard(self, guard: Guard) -> Which | None:
        """The ranks that a condition lets through."""
        key = (guard.test, guard.holds)
        if key not in self._known:
            self._known[key] = self._which(guard.test, guard.holds, _DEPTH)
        return self._known[key]

    def _which(self, test: ast.expr, holds: bool, depth: int) -> Which | None:
        if depth < 0:
            return Which.PERHAPS
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._which(test.operand, not holds, depth)
        if isinstance(test, ast.BoolOp):
            return self._joined(test, holds, depth)
        if isinstance(test, ast.Compare):
            return self._compared(test, holds)
        if isinstance(test, ast.Constant):
            return None
        if isinstance(test, ast.NamedExpr):
            return self._which(test.value, holds, depth)
        if isinstance(test, ast.Call):
            inner = self._called(test, holds, depth)
            if inner is not None:
                return inner
        if isinstance(test, ast.Name | ast.Attribute):
            bindings = self._values.reaching(test)
            if len(bindings) == 1 and isinstance(
                bindings[0].value, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Call
            ):
                return self._which(bindings[0].value, holds, depth - 1)
        kinds = self._values.kinds(test)
        if "main_process" in kinds:
            return Which.ONE if holds else Which.OTHERS
        if kinds and kinds <= RANKS:
            return Which.OTHERS if holds else Which.ONE
        return _perhaps(test)

    def _joined(self, test: ast.BoolOp, holds: bool, depth: int) -> Which | None:
        parts = {self._which(part, holds, depth) for part in test.values}
        if isinstance(test.op, ast.And) is holds:  # all of the parts hold
            for wanted in (Which.ONE, Which.OTHERS, Which.PERHAPS):
                if wanted in parts:
                    return wanted
            return None
        if len(parts) == 1:
            return parts.pop()
        return None if parts == {None} else Which.PERHAPS

    def _called(self, test: ast.Call, holds: bool, depth: int) -> Which | None:
        function = self._values.function_of(test.func)
        if function is None or isinstance(function, ast.Lambda):
            return None
        returned = [
            node.value
            for node in self._values.names.returns.get(function, ())
            if node.value is not None and not isinstance(node.value, ast.Constant)
        ]
        if len(returned) != 1:
            return None
        return self._which(returned[0], holds, depth - 1)

    def _compared(self, test: ast.Compare, holds: bool) -> Which | None:
        if len(test.ops) != 1:
            return _perhaps(test)
        left, operator, right = test.left, test.ops[0], test.comparators[0]
        if self._values.kinds(right) & RANKS and not self._values.kinds(left) & RANKS:
            left, right = right, left
            operator = _mirrored(operator)
        if isinstance(left, ast.Name) and left.id == "__name__":
            return None
        kinds = self._values.kinds(left)
        if not kinds or not kinds <= RANKS:
            return _perhaps(test)
        one = _lets_one_through(operator, right)
        if one is None:
            return Which.PERHAPS
        return Which.ONE if one is holds else Which.OTHERS


def _lets_one_through(operator: ast.cmpop, right: ast.expr) -> bool | None:
    """Whether `rank OPERATOR right` holds for one rank (True) or all but one (False); None where it is neither."""
    number = _number(right)
    if isinstance(operator, ast.In | ast.NotIn) and isinstance(right, ast.Tuple | ast.List | ast.Set):
        numbers = {_number(part) for part in right.elts}
        if numbers <= {-1, 0} and 0 in numbers:
            return isinstance(operator, ast.In)
        return None
    if number is None or number < 0:
        return None
    if isinstance(operator, ast.Eq | ast.NotEq):
        return isinstance(operator, ast.Eq)
    if (number == 0 and isinstance(operator, ast.Gt)) or (number == 1 and isinstance(operator, ast.GtE)):
        return False
    if (number == 0 and isinstance(operator, ast.LtE)) or (number == 1 and isinstance(operator, ast.Lt)):
        return True
    return None


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int)
    return (
        node.value if is_number and isinstance(node, ast.Constant) and isinstance(node.value, int) else None
    )


def _mirrored(operator: ast.cmpop) -> ast.cmpop:
    pairs: dict[type[ast.cmpop], ast.cmpop] = {
        ast.Lt: ast.Gt(),
        ast.Gt: ast.Lt(),
        ast.LtE: ast.GtE(),
        ast.GtE: ast.LtE(),
    }
    return pairs.get(type(operator), operator)


def _perhaps(test: ast.expr) -> Which | None:
    return Which.PERHAPS if _PERHAPS.search(ast.unparse(test)) else None
