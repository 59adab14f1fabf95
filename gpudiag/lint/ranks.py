"""The ranks that a condition admits: one, all but one, or unknown."""

import ast
import re
from collections.abc import Iterator

from gpudiag.compat import StrEnum
from gpudiag.lint.arguments import argument_of, key_of_configuration
from gpudiag.lint.names import Binding
from gpudiag.lint.trace import Guard, Where
from gpudiag.lint.values import RANKS, Values
from gpudiag.lint.vocabulary import ENVIRONMENT, MAIN_WORDS

_PERHAPS = re.compile(
    r"rank|main|master|primary|chief|leader|zero|saver|writer|logger|wandb|proc|node|gpu|local|dist|world|"
    r"ddp|multi|parallel"
    r"|horovod|hvd|first|root|shard|fsdp|coordinator|should_|verbose",
    re.IGNORECASE,
)
_ONE_AT_A_TIME = re.compile(r"first|zero|main|master|lock|local|rank|once|barrier|sequential", re.IGNORECASE)
# A decorator that admits one rank to the function, and one that may.
_ONLY_ONE = re.compile(
    r"_?(?:only_)?(?:on_)?(?:local_|global_)?(?:rank_?(?:zero|0)|main(?:_process|_rank)?|"
    r"master(?:_process|_rank)?)(?:_only)?$"
)
_CHOOSES = re.compile(
    r"rank|master|primary|chief|leader|zero|root|main_|_main|process|only|once|first", re.IGNORECASE
)
# Names of the test whether there are ranks at all: its result is the same on every rank.
_IN_A_JOB = re.compile(
    r"^_?(?:is_|use_|using_|enable_|run_)*(?:multiprocessing_)?(?:distributed|dist|ddp|multi_?gpus?)"
    r"(?:_?(?:training|mode|run|enabled|avail|available|and|initiali[sz]ed))*(?:\(\))?$",
    re.IGNORECASE,
)
_ASKED = frozenset({"torch.distributed.is_initialized", "torch.distributed.is_available"})
# Names of a configuration's values that may count all ranks of the job.
_ALL_RANKS = re.compile(
    r"world|gpu|device|proc|rank|total|worker|node|start|end|^(?:n|num|size)$", re.IGNORECASE
)
_DEPTH = 6


class Which(StrEnum):
    """The ranks for which a condition holds."""

    ONE = "one"  # rank 0, or another single one; of each machine too
    OTHERS = "others"
    PERHAPS = "perhaps"  # it may have to do with ranks
    NOBODY = "nobody"  # no rank of a job: what a single process does


class RankConditions:
    """The ranks that the conditions of one script admit."""

    def __init__(self, values: Values) -> None:
        """For the script with these values."""
        self._values = values
        self._known: dict[tuple[ast.AST, bool], Which | None] = {}

    def of(self, where: Where) -> Which | None:
        """The ranks that reach a place; None where no condition excludes any."""
        found = {self.of_guard(guard) for guard in where.guards}
        found |= {self._of_decorator(decorator) for decorator in where.decorators}
        found |= {self.of_guard(guard) for guard in rounds_of(where)} & {Which.ONE, Which.OTHERS}
        if {Which.ONE, Which.OTHERS} <= found and self._contradict(where):
            return Which.NOBODY
        for wanted in (Which.ONE, Which.OTHERS, Which.PERHAPS):
            if wanted in found:
                return wanted
        return (
            Which.PERHAPS if any(_ONE_AT_A_TIME.search(ast.unparse(item)) for item in where.withs) else None
        )

    def _contradict(self, where: Where) -> bool:
        """Whether a place is for one rank and for the others by the same number: no rank comes there."""
        numbers: dict[Which | None, set[str]] = {}
        for guard in where.guards:
            compared = [part.left for part in ast.walk(guard.test) if isinstance(part, ast.Compare)]
            numbers.setdefault(self.of_guard(guard), set()).update(
                ast.unparse(part) for part in compared if self._is_rank(part)
            )
        return bool(numbers.get(Which.ONE, set()) & numbers.get(Which.OTHERS, set()))

    def _of_decorator(self, node: ast.expr) -> Which | None:
        """The ranks that a decorator admits, by its name or by its condition in this script."""
        called = node.func if isinstance(node, ast.Call) else node
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        given = [str(k.arg) for k in node.keywords] if isinstance(node, ast.Call) else []
        if _ONLY_ONE.match(name) and not given and self._values.names.qualify(called) != "hydra.main":
            return Which.ONE
        function = self._values.function_of(called)
        found: Which | None = None
        for inner in ast.walk(function) if function is not None else ():
            if isinstance(inner, ast.If | ast.IfExp) and (which := self.of_guard(Guard(inner.test, True))):
                runs_it = isinstance(inner, ast.If) and not inner.orelse and self._calls_only(function, inner)
                found = Which.ONE if which is Which.ONE and runs_it else Which.PERHAPS
        if found is None and any(_CHOOSES.search(word) for word in (name, *given)):
            return Which.PERHAPS
        return found

    @staticmethod
    def _calls_only(decorator: ast.AST | None, condition: ast.If) -> bool:
        """Whether a decorator calls its function in the body of a condition, and nowhere else."""
        if not isinstance(decorator, ast.FunctionDef) or not decorator.args.args:
            return False
        given = decorator.args.args[0].arg
        calls = [
            n for n in ast.walk(decorator) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == given
        ]
        inside = {node for part in condition.body for node in ast.walk(part)}
        return bool(calls) and inside.issuperset(calls)

    def of_guard(self, guard: Guard) -> Which | None:
        """The ranks that a condition admits."""
        key = (guard.test, guard.holds)
        if key not in self._known:
            found = self._which(guard.test, guard.holds, _DEPTH)
            self._known[key] = Which.PERHAPS if found is Which.NOBODY else found
        return self._known[key]

    def lets_some_through(self, guard: Guard) -> bool:
        """Whether a condition holds for several ranks and not for all: `rank < 2`, `rank % 2 == 0`."""
        return self._some(guard.test, guard.holds, _DEPTH)

    def _some(self, test: ast.expr, holds: bool, depth: int) -> bool:
        if depth < 0:
            return False
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._some(test.operand, not holds, depth)
        if isinstance(test, ast.BoolOp):
            return isinstance(test.op, ast.And) is holds and any(
                self._some(part, holds, depth) for part in test.values
            )
        if isinstance(test, ast.Compare):
            return len(test.ops) == 1 and self._compares_with_several(test)
        if isinstance(test, ast.BinOp):  # `if rank % 2:`
            return self._shares_out(test)
        if isinstance(test, ast.Name | ast.Attribute):
            made = self._made(test)
            return isinstance(made, ast.Compare | ast.BoolOp | ast.UnaryOp) and self._some(
                made, holds, depth - 1
            )
        return False

    def _is_last(self, node: ast.expr) -> bool:
        """Whether a number is that of the last rank: `world_size - 1`."""
        return (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Sub)
            and isinstance(node.right, ast.Constant)
            and node.right.value == 1
            and "world_size" in self._values.kinds(node.left)
        )

    def _compares_with_several(self, test: ast.Compare) -> bool:
        left, operator, right = test.left, test.ops[0], test.comparators[0]
        if self._is_rank(right) and not self._is_rank(left):
            left, right, operator = right, left, _mirrored(operator)
        if self._shares_out(left):
            return isinstance(operator, ast.Eq | ast.NotEq | ast.Lt | ast.Gt | ast.LtE | ast.GtE)
        if not self._is_rank(left):
            return False
        if isinstance(operator, ast.In | ast.NotIn):
            return _lets_one_through(operator, right) is None and self._are_some(right)
        if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            number = _number(right)
            if number is not None:  # `rank >= 0` tests whether there is a rank at all
                return number > 0 and _lets_one_through(operator, right) is None
            if isinstance(right, ast.BinOp):
                return isinstance(right.op, ast.FloorDiv | ast.Div)
            return self._is_configured_part(right)
        return False

    def _is_configured_part(self, node: ast.expr) -> bool:
        """Whether a number is a configuration's, and not that of all ranks: `cfg.tensor_parallel`."""
        made = self._made(node) if isinstance(node, ast.Name) else node
        key = key_of_configuration(made) if made is not None else ""
        return bool(key) and not _ALL_RANKS.search(key) and "world_size" not in self._values.kinds(made)

    def _is_rank(self, node: ast.expr) -> bool:
        kinds = self._kinds(node)
        return bool(kinds) and kinds <= RANKS

    def _shares_out(self, node: ast.expr) -> bool:
        """Whether a number is the same for some of the ranks: `rank % 2`, `rank // 4`."""
        return (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mod | ast.FloorDiv)
            and self._is_rank(node.left)
            and "world_size" not in self._values.kinds(node.right)
            and not (isinstance(node.right, ast.Constant) and node.right.value == 1)
        )

    def _are_some(self, node: ast.expr) -> bool:
        """Whether a list of ranks may be of some: not `range(world_size)`, nor a literal of one rank."""
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return len(node.elts) > 1
        text = ast.unparse(node)
        values = self._values.of(node)
        made = " ".join(ast.unparse(v.node) for v in values if isinstance(v.node, ast.expr))
        return not any(
            word in f"{text} {made}".lower() for word in ("world", "all_", "size", "environ", "range", "keys")
        )

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
            inner = self._returned(test.func, holds, depth)
            if inner is not None:
                return inner
        if isinstance(test, ast.Name | ast.Attribute):
            made = self._made(test)
            if isinstance(made, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Call):
                return self._which(made, holds, depth - 1)
            inner = self._returned(test, holds, depth) if isinstance(test, ast.Attribute) else None
            if inner is not None:  # a property
                return inner
        kinds = self._kinds(test)
        if "main_process" in kinds:
            return Which.ONE if holds else Which.OTHERS
        if kinds and kinds <= RANKS:
            return Which.OTHERS if holds else Which.ONE
        if self._asks_for_a_job(test):
            return None if holds else Which.NOBODY
        return _perhaps(test)

    def _made(self, test: ast.Name | ast.Attribute) -> ast.expr | None:
        """The one expression of a name's value; a second may be True for a main process without ranks."""
        values = [binding.value or self._given(binding) for binding in self._values.reaching(test)]
        name = test.id if isinstance(test, ast.Name) else test.attr
        if len(values) > 1 and MAIN_WORDS.match(name):
            values = [v for v in values if not (isinstance(v, ast.Constant) and isinstance(v.value, bool))]
        return values[0] if len(values) == 1 else None

    def _given(self, binding: Binding) -> ast.expr | None:
        """What the one caller of a function gives for a parameter."""
        arguments = self._values.names.parents.get(binding.node) if binding.parameter else None
        function = self._values.names.parents.get(arguments) if arguments is not None else None
        calls = self._values.callers.get(function, []) if isinstance(function, ast.FunctionDef) else []
        if (
            len(calls) != 1
            or not isinstance(function, ast.FunctionDef)
            or not isinstance(binding.node, ast.arg)
        ):
            return None
        return argument_of(function, binding.node.arg, calls[0])

    def _kinds(self, node: ast.expr) -> frozenset[str]:
        """The kinds of a value, without what stands for a rank where there are none: 0, -1, or nothing."""
        values = self._values.of(node)
        if not any(value.kind.removesuffix("_text") in RANKS for value in values):
            return frozenset(value.kind for value in values)
        return frozenset(v.kind for v in values if v.kind != "none" and not is_stand_in(v.node))

    def _asks_for_a_job(self, test: ast.expr) -> bool:
        """Whether a condition tests whether there are ranks at all."""
        called = test.func if isinstance(test, ast.Call) and not test.args and not test.keywords else test
        if isinstance(called, ast.Subscript):
            return _IN_A_JOB.match(key_of_configuration(called)) is not None
        if not isinstance(called, ast.Name | ast.Attribute):
            return False
        name = called.id if isinstance(called, ast.Name) else called.attr
        return self._values.names.qualify(called) in _ASKED or _IN_A_JOB.match(name) is not None

    def _joined(self, test: ast.BoolOp, holds: bool, depth: int) -> Which | None:
        parts = {self._which(part, holds, depth) for part in test.values}
        if isinstance(test.op, ast.And) is holds:  # all of the parts hold
            for wanted in (Which.NOBODY, Which.ONE, Which.OTHERS, Which.PERHAPS):
                if wanted in parts:
                    return wanted
            return None
        if len(parts) > 1:
            parts.discard(Which.NOBODY)
        if parts <= {Which.ONE, Which.OTHERS} and len({ast.unparse(n) for n in _compared_with(test)}) > 1:
            return Which.PERHAPS  # rank 0 or rank 1
        if len(parts) == 1:
            return parts.pop()
        return None if parts == {None} else Which.PERHAPS

    def _returned(self, called: ast.expr, holds: bool, depth: int) -> Which | None:
        """The ranks for which the one expression that a function returns holds."""
        function = self._values.function_of(called)
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
        kinds = self._kinds(left)
        if isinstance(right, ast.Constant) and isinstance(right.value, str) and right.value.isdecimal():
            kinds = frozenset(kind.removesuffix("_text") for kind in kinds)
            right = ast.Constant(int(right.value))
        named = (
            [v.node for v in self._values.of(right)] if isinstance(right, ast.Name | ast.Attribute) else []
        )
        if len(named) == 1 and isinstance(named[0], ast.Constant) and kinds & RANKS:  # `rank == MASTER`
            right = named[0]
        in_a_job = _holds_in_a_job(kinds, operator, left, right)
        if in_a_job is not None:
            return None if in_a_job is holds else Which.NOBODY
        if not kinds or not kinds <= RANKS:
            return _perhaps(test)
        one = _lets_one_through(operator, right)
        if one is None and isinstance(operator, ast.Eq | ast.NotEq) and self._is_last(right):
            one = isinstance(operator, ast.Eq)
        if one is None:
            return Which.PERHAPS
        return Which.ONE if one is holds else Which.OTHERS


def rounds_of(where: Where) -> Iterator[Guard]:
    """The conditions of the loops around a place."""
    return (Guard(loop.test, True) for loop in where.loops if isinstance(loop, ast.While))


def _compared_with(test: ast.BoolOp) -> Iterator[ast.expr]:
    """The numbers that the parts of a condition compare with."""
    for part in test.values:
        if isinstance(part, ast.Compare) and _number(part.comparators[0]) is not None:
            yield part.comparators[0]


def is_stand_in(node: ast.AST | None) -> bool:
    """Whether a value is what scripts give a rank where there are none: 0, -1, nothing."""
    if isinstance(node, ast.Constant):
        return node.value is None or (node.value in (0, "0", "-1", "") and node.value is not False)
    return isinstance(node, ast.expr) and _number(node) == -1


def _holds_in_a_job(
    kinds: frozenset[str], operator: ast.cmpop, left: ast.expr, right: ast.expr
) -> bool | None:
    """Whether a test such as `world_size > 1` holds with ranks (True) or without; None: neither."""
    if (
        isinstance(left, ast.Constant)
        and left.value in ENVIRONMENT
        and ast.unparse(right).endswith("environ")
    ):
        return isinstance(operator, ast.In) if isinstance(operator, ast.In | ast.NotIn) else None
    if isinstance(right, ast.Constant) and right.value is None and kinds and kinds <= RANKS:
        return isinstance(operator, ast.IsNot | ast.NotEq)
    number = _number(right)
    if kinds and kinds <= RANKS and number is not None:
        if number == -1 and isinstance(operator, ast.Eq | ast.NotEq | ast.Gt):
            return not isinstance(operator, ast.Eq)
        if number == 0 and isinstance(operator, ast.Lt | ast.GtE):
            return isinstance(operator, ast.GtE)
    if "world_size" in kinds and kinds <= {"world_size", "int", "number"}:
        if number == 1 and isinstance(operator, ast.Gt | ast.NotEq | ast.LtE | ast.Eq):
            return isinstance(operator, ast.Gt | ast.NotEq)
        if number == 2 and isinstance(operator, ast.GtE | ast.Lt):
            return isinstance(operator, ast.GtE)
    return None


def _lets_one_through(operator: ast.cmpop, right: ast.expr) -> bool | None:
    """Whether `rank OPERATOR right` holds for one rank (True) or all but one (False); None: neither."""
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
