"""A training loop that ranks leave at different times."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint.collectives import collectives_of
from gpudiag.lint.origins import behind, origins
from gpudiag.lint.program import Mistake, Program, argument, is_constant
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Guard, Loop, Step
from gpudiag.lint.training import iterated, loaders_of, sampler_of, samples_by_rank
from gpudiag.lint.values import RANKS
from gpudiag.lint.vocabulary import CLOCKS, FSDP1, FULLY_SHARD, GROUP_MAKERS
from gpudiag.model.lint import Severity

_SENDS = (
    "broadcast broadcast_object_list all_reduce all_gather all_gather_object scatter scatter_object_list"
).split()

_ALL = r"\w*(?:reduce|gather|broadcast)\w*"
# What splits a list into parts of which the first may be larger.
_UNEVEN_SPLITS = frozenset({"array_split", "tensor_split", "chunk", "distribute", "divide"})
# What ends the loop of Lightning, and of Hugging Face's Trainer.
_STOPS = frozenset({"should_stop", "should_training_stop"})
_AGREE = (
    "broadcast the decision of that rank in each step, outside of the condition, and let every rank leave "
    "by it"
)


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner:
        yield from _find_stops(program)
        return
    meeting = _loops_that_meet(program)
    yield from _find_counts(program, meeting)
    yield from _find_larger_shares(program, meeting)
    yield from _find_uneven_shares(program, meeting)
    yield from _find_breaks(program, meeting)
    yield from _find_skips(program)


def _find_stops(program: Program) -> Iterator[Mistake]:
    """Where one rank alone sets the flag that ends a framework's loop: each rank reads its own."""
    if program.mentions("reduce_boolean_decision", *_SENDS):
        return
    for step in program.steps:
        target = step.node.targets[0] if isinstance(step.node, ast.Assign) else None
        if (
            isinstance(target, ast.Attribute)
            and target.attr in _STOPS
            and program.which_ranks(step) in (Which.ONE, Which.OTHERS)
        ):
            message = f"one rank alone sets {target.attr}: it leaves the loop, and the others wait for it"
            yield Mistake(step.node, message, "", advice=_AGREE)


def _find_skips(program: Program) -> Iterator[Mistake]:
    """Rounds without a backward pass on the ranks whose own loss or data is not finite."""
    wrapped = program.ddp_steps or program.calls(FSDP1, FULLY_SHARD)
    if not wrapped or program.mentions(_ALL):
        return
    reported = set()
    for step in program.backwards:
        for node, left in _other_ways(program, step) if step.where.loops else ():
            last = left[-1] if left else None
            if isinstance(last, ast.Raise) or any(
                w in " ".join(map(ast.unparse, left)) for w in ("exit(", "abort(", "backward(")
            ):
                continue
            node = last if isinstance(last, ast.Continue | ast.Return) else node
            if node not in reported:
                reported.add(node)
                yield Mistake(
                    node,
                    "a rank whose own step fails leaves out the backward pass,"
                    " and the others wait for it there",
                    "",
                    advice=(
                        "let all ranks skip the step: all_reduce a flag of each"
                        " rank (MAX) before the condition"
                    ),
                )


def _other_ways(program: Program, step: Step) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    """What a rank does instead of a backward pass: where numbers are not finite, or after an exception."""
    for guard in step.where.guards:
        statement = program.names.parents.get(guard.test)
        asks = (
            _asks_for_numbers(program, guard.test)
            or _compares_the_loss(program, guard.test, step)
            or _asks_for_items(program, guard.test, step.where.loops[-1])
        )
        if isinstance(statement, ast.If) and asks:
            yield guard.test, statement.orelse if guard.holds else statement.body
    for outer in program.names.ancestors(step.node):
        if isinstance(outer, ast.For | ast.While | ast.FunctionDef):
            return
        if isinstance(outer, ast.Try) and any(step.node in ast.walk(part) for part in outer.body):
            for handler in outer.handlers:
                if re.search(
                    r"RuntimeError|OutOfMemory|\bException|ValueError", ast.unparse(handler.type or handler)
                ):
                    yield handler, handler.body
                    for part in handler.body:
                        if isinstance(part, ast.If) and isinstance(part.body[-1], ast.Continue | ast.Return):
                            yield part, part.body


def _compares_the_loss(program: Program, test: ast.expr, backward: Step) -> bool:
    """Whether a condition compares the loss of a backward pass with a number: `if loss > 0:`."""
    call = backward.node
    losses = [backward.receiver, *call.args] if isinstance(call, ast.Call) else []
    made = {
        b.node
        for loss in losses
        if loss is not None
        for part in ast.walk(loss)
        if isinstance(part, ast.Name)
        for b in program.values.reaching(part)
        if isinstance(b.node, ast.Assign)
    }
    for part in ast.walk(test):
        if isinstance(part, ast.Compare) and isinstance(part.comparators[0], ast.Constant):
            side = part.left
            while isinstance(side, ast.Call) and isinstance(side.func, ast.Attribute) and not side.args:
                side = side.func.value  # `loss.item()`
            is_number = isinstance(part.comparators[0].value, int | float)
            if isinstance(side, ast.Name) and is_number:
                return bool(made & {b.node for b in program.values.reaching(side)})
    return False


def _asks_for_items(program: Program, test: ast.expr, loop: Loop) -> bool:
    """Whether a condition tests that this rank's own batch has nothing in it: `if len(boxes) == 0:`."""
    if isinstance(test, ast.BoolOp):
        return any(_asks_for_items(program, part, loop) for part in test.values)
    loaders = loaders_of(program, loop)
    is_empty = isinstance(test, ast.Compare) and is_constant(test.comparators[0], 0, None)
    if not is_empty or not any(samples_by_rank(program, sampler_of(loader)) for loader in loaders):
        return False
    return any(
        b.node is loop and b.path[1:2] != (0,)
        for part in behind(program, test)
        if isinstance(part, ast.Name)
        for b in program.values.reaching(part)
    )


def _asks_for_numbers(program: Program, test: ast.expr) -> bool:
    """Whether a condition tests that values are finite, itself or by its name."""
    tests = [test]
    for part in ast.walk(test):
        if isinstance(part, ast.Name) and isinstance(
            program.names.parents.get(part), ast.If | ast.UnaryOp | ast.BoolOp
        ):
            tests += [b.value for b in program.values.reaching(part) if b.value is not None]
    return any(
        isinstance(n, ast.Call)
        and getattr(n.func, "attr", getattr(n.func, "id", "")) in ("isnan", "isfinite", "isinf")
        for made in tests
        for n in ast.walk(made)
    )


def _loops_that_meet(program: Program) -> list[Loop]:
    """The loops in which ranks wait for each other: in a collective, or in the backward pass of DDP."""
    loops = []
    for name, step in collectives_of(program):
        if (
            name != "init_process_group"
            and name not in GROUP_MAKERS
            and "group" not in ast.unparse(step.node)
            and program.which_ranks(step) is None
        ):
            loops += list(step.where.loops)
    if program.ddp_steps and program.opens_group:
        for step in program.backwards:
            loops += list(step.where.loops)
    return loops


def _find_counts(program: Program, meeting: list[Loop]) -> Iterator[Mistake]:
    reported = set()
    for loop in meeting:
        if loop in reported or not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
            continue
        over = loop.iter
        bounds = over.args if len(over.args) < 3 else over.args[1:2]  # a stride shares the rounds out
        if getattr(over.func, "id", "") == "range" and any(_depends(program, part) for part in bounds):
            reported.add(loop)
            yield _other_count(loop)


def _other_count(loop: Loop) -> Mistake:
    return Mistake(
        loop,
        "the number of rounds depends on the rank: ranks that continue wait for those that have left",
        "",
        advice="let all ranks agree on the smallest number: dist.all_reduce(count, op=dist.ReduceOp.MIN)",
    )


def _find_larger_shares(program: Program, meeting: list[Loop]) -> Iterator[Mistake]:
    """Loops over a slice of the data that one rank takes to another end than the rest."""
    for loop in dict.fromkeys(meeting):
        if not isinstance(loop, ast.For) or program.mentions("Join", "join", _ALL):
            continue
        data = [argument(loader, 0, "dataset") for loader in loaders_of(program, loop)]
        whole = [node for node in data if node is not None] or [iterated(loop.iter)]
        subsets = [v.node for node in whole for v in program.values.of(node) if v.kind == "subset" and v.node]
        for part in behind(program, *whole, *subsets):
            cut = getattr(part, "slice", None) or getattr(getattr(part, "body", None), "slice", None)
            bounds: list[ast.AST | None] = []
            if isinstance(cut, ast.Slice):
                bounds = [part, cut.lower, cut.upper]
            elif isinstance(part, ast.Call) and getattr(part.func, "id", "") == "range":
                bounds = [*part.args[:2]]
            if any(_is_chosen(program, bound) for bound in bounds if isinstance(bound, ast.Name | ast.IfExp)):
                yield _other_count(loop)
                break


def _find_uneven_shares(program: Program, meeting: list[Loop]) -> Iterator[Mistake]:
    """Loops over a share cut by hand, which may have one item more on the first ranks than on the last."""
    if program.mentions("Join", "MIN", "MAX", "cycle", "repeat") or _tests_the_remainder(program):
        return
    for loop in dict.fromkeys(meeting):
        if not isinstance(loop, ast.For) or any(
            isinstance(n, ast.Break | ast.Return) for n in ast.walk(loop)
        ):
            continue
        loaders = loaders_of(program, loop)
        data = [argument(loader, 0, "dataset") for loader in loaders]
        given = [node for node in data if node is not None] or [iterated(loop.iter)]
        classes = [program.values.class_of(node) for node in given]
        if any(samples_by_rank(program, sampler_of(loader)) for loader in loaders) or any(
            isinstance(n, ast.While) for home in classes if home is not None for n in ast.walk(home)
        ):
            continue
        parts = origins(program, *given, *(home for home in classes if home is not None))
        cut = next((part for part in parts if _is_uneven(program, part)), None)
        if cut is not None:
            line = program.line_at(getattr(cut, "lineno", loop.lineno)).number
            yield Mistake(
                loop,
                f"shares cut by hand (line {line}) may differ by an item: ranks with one more wait for the"
                " others",
                "",
                advice="drop or repeat items first, so that their number is a multiple of the world size",
                severity=Severity.NOTE,
            )


def _tests_the_remainder(program: Program) -> bool:
    """Whether the script has a remainder by the world size that is no share: `len(files) % world_size`."""
    return any(
        _is_remainder(program, node) and not _is_share(program, program.names.parents.get(node))
        for node in program.nodes
    )


def _is_remainder(program: Program, node: ast.AST) -> bool:
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and "world_size" in program.values.kinds(node.right)
    )


def _is_share(program: Program, node: ast.AST | None) -> bool:
    """Whether a test takes every n-th item for a rank: `index % world_size == rank`."""
    return (
        isinstance(node, ast.Compare)
        and _is_remainder(program, node.left)
        and bool(program.values.kinds(node.comparators[0]) & RANKS)
    )


def _is_uneven(program: Program, part: ast.AST) -> bool:
    """Whether an expression takes a rank's share whose length depends on the remainder."""
    if isinstance(part, ast.Compare):
        return _is_share(program, part)
    kinds = program.values.kinds
    start: ast.AST | None = None
    stride: ast.AST | None = None
    whole: ast.AST | None = None
    if isinstance(part, ast.Subscript):
        whole, cut = part.value, part.slice
        if isinstance(cut, ast.Slice):
            start, stride = cut.lower, cut.step
            if start is not None and stride is None and cut.upper is not None:
                return _is_rounded_share(program, start, cut.upper)
        elif kinds(cut) and kinds(cut) <= RANKS and isinstance(whole, ast.Call):
            name = (program.names.qualify(whole.func) or "").rpartition(".")[2]
            return name in _UNEVEN_SPLITS
    elif isinstance(part, ast.Call) and len(part.args) > 1:
        name = ast.unparse(part.func).rpartition(".")[2]
        if name == "islice" and len(part.args) > 3 and is_constant(part.args[2], None):
            whole, start, _, stride = part.args[:4]
        elif name == "range" and len(part.args) > 2:
            start, whole, stride = part.args[:3]
        elif name == "range":
            return _is_rounded_share(program, *part.args)
    if start is None or stride is None or not kinds(start) or not kinds(start) <= RANKS:
        return False
    if "world_size" not in kinds(stride) or whole is None or kinds(whole) == {"int"}:
        return False  # a written number of items is one that the ranks can share
    return not any(_cuts(program, n) for n in origins(program, whole))


def _is_rounded_share(program: Program, *bounds: ast.expr) -> bool:
    """Whether the bounds of a share are computed from the rank and from a length that is rounded up."""
    terms, left = set[ast.expr](), list(bounds)
    while left:
        node = left.pop()
        if node in terms:
            continue
        terms.add(node)
        if isinstance(node, ast.BinOp):
            left += [node.left, node.right]
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            left += node.args if name in ("int", "min", "ceil", "floor") else []
        elif isinstance(node, ast.Name | ast.Attribute):
            left += [b.value for b in program.values.reaching(node) if b.value is not None and not b.path]
    by_rank = any((kinds := program.values.kinds(term)) and kinds <= RANKS for term in terms)
    return by_rank and any(_rounds_up(term) for term in terms)


def _cuts(program: Program, node: ast.AST) -> bool:
    """Whether a number is computed by the world size, as one is that cuts a list to a multiple of it."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.FloorDiv | ast.Mult)
        and any("world_size" in program.values.kinds(side) for side in (node.left, node.right))
    )


def _rounds_up(node: ast.AST) -> bool:
    """Whether a number is rounded up: `math.ceil(n / size)`, `(n + size - 1) // size`, `n // size + 1`."""
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", getattr(node.func, "id", "")) == "ceil"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and is_constant(node.right, 1):
        return isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.FloorDiv)
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.FloorDiv)
        and isinstance(node.left, ast.BinOp)
        and isinstance(node.left.op, ast.Sub)
        and is_constant(node.left.right, 1)
    )


def _depends(program: Program, part: ast.expr) -> bool:
    """Whether a bound is a rank, or a choice by rank."""
    if program.values.kinds(part) and program.values.kinds(part) <= RANKS - {"rank_name", "local_rank_name"}:
        return True
    return _is_chosen(program, part)


def _is_chosen(program: Program, part: ast.expr) -> bool:
    """Whether one rank has another number than the rest."""
    exprs = [part]
    if isinstance(part, ast.Name):
        if _is_set_on_one_rank(program, part):
            return True
        exprs += [b.value for b in program.values.reaching(part) if b.value is not None and not b.path]
    return any(
        isinstance(node, ast.IfExp)
        and program.ranks.of_guard(Guard(node.test, True)) in (Which.ONE, Which.OTHERS)
        for node in exprs
    )


def _is_set_on_one_rank(program: Program, part: ast.Name) -> bool:
    """Whether one rank alone gives a name another value than the rest have, and nothing sends it to them."""
    if program.mentions(*_SENDS):
        return False
    bindings = program.values.reaching(part)
    guarded = []
    for binding in bindings:
        outer = next((a for a in program.names.ancestors(binding.node) if isinstance(a, ast.If)), None)
        holds = outer is not None and any(binding.node in set(ast.walk(s)) for s in outer.body)
        if outer is not None and binding.value is not None:
            guarded.append(program.ranks.of_guard(Guard(outer.test, holds)))
    return any(which in (Which.ONE, Which.OTHERS) for which in guarded)


def _find_breaks(program: Program, meeting: list[Loop]) -> Iterator[Mistake]:
    reported = set()
    for step in program.steps:
        if not isinstance(step.node, ast.Break | ast.Return) or step.node in reported or not step.where.loops:
            continue
        if step.where.loops[-1] not in program.names.ancestors(step.node):
            continue
        if step.where.loops[-1] in meeting and _is_counted_on_one_rank(program, step):
            reported.add(step.node)
            yield Mistake(
                step.node,
                (
                    "what ends the loop is counted on one rank alone: it leaves, and the others wait for it "
                    "in their next step"
                ),
                "",
                advice=_AGREE,
            )
        elif step.where.loops[-1] in meeting and _is_of_its_own(program, step):
            reported.add(step.node)
            message = "each rank leaves the loop by a figure of its own: the others wait in their next step"
            yield Mistake(step.node, message, "", advice="all_reduce that figure, or a flag, in each round")
        elif (
            step.where.loops[-1] in meeting
            and program.which_ranks(step) in (Which.ONE, Which.OTHERS)
            and _inside(program, step.node, step.where.loops[-1])
        ):
            reported.add(step.node)
            yield Mistake(
                step.node,
                "one rank alone leaves the loop; the others wait for it in their next step",
                "",
                advice=_AGREE,
            )


def _is_of_its_own(program: Program, step: Step) -> bool:
    """Whether a clock decides on a break, or the loss of this rank's own batch."""
    loop = step.where.loops[-1]
    if program.mentions(_ALL) or program.which_ranks(step) is not None:
        return False
    taken = [
        getattr(b.node, "args", None) or [b.receiver] for b in program.backwards if loop in b.where.loops
    ]
    losses = [part.args[0] if isinstance(part, ast.Call) and part.args else part for part, *_ in taken]
    made = {
        (b.node, b.path)
        for loss in losses
        if isinstance(loss, ast.Name)
        for b in program.values.reaching(loss)
    }
    for guard in step.where.guards:
        if loop not in program.names.ancestors(guard.test):
            continue
        for part in origins(program, guard.test, decided=True):
            if isinstance(part, ast.Call) and program.names.qualify(part.func) in CLOCKS:
                return True
            if isinstance(part, ast.Name | ast.Attribute) and (
                made & {(b.node, b.path) for b in program.values.reaching(part)}
                or _is_read_inside(program, part, loop)
            ):
                return True
    return False


def _is_read_inside(program: Program, node: ast.expr, loop: Loop) -> bool:
    """Whether a loop within another takes this rank's share of the data from a loader."""
    over: ast.AST | None = node
    while isinstance(over, ast.expr):
        over = program.names.parents.get(over)
    is_loop = isinstance(over, ast.For | ast.comprehension) and iterated(over.iter) is node
    if not is_loop or over is loop or loop not in program.names.ancestors(node):
        return False
    loaders = [v.node for v in program.values.of(node) if v.kind == "loader"]
    return any(isinstance(call, ast.Call) and samples_by_rank(program, sampler_of(call)) for call in loaders)


def _is_counted_on_one_rank(program: Program, step: Step) -> bool:
    """Whether the condition of a break has a name that one rank alone gives another value in the loop."""
    if program.mentions(*_SENDS) or program.which_ranks(step) is not None:
        return False
    loop = step.where.loops[-1]
    for guard in step.where.guards:
        if loop not in program.names.ancestors(guard.test):
            continue
        for name in (part for part in ast.walk(guard.test) if isinstance(part, ast.Name)):
            changes = [
                other
                for other in program.steps
                if isinstance(other.node, ast.Assign | ast.AugAssign)
                and loop in other.where.loops
                and any(binding.node is other.node for binding in program.names.bindings_of(name))
            ]
            alone = [other for other in changes if program.which_ranks(other) is Which.ONE]
            if alone and all(
                other in alone or isinstance(getattr(other.node, "value", None), ast.Constant)
                for other in changes
            ):
                return True
    return False


def _inside(program: Program, node: ast.AST, loop: Loop) -> bool:
    """Whether the condition on ranks stands within the loop."""
    for outer in program.names.ancestors(node):
        if outer is loop:
            return False
        if isinstance(outer, ast.If) and program.ranks.of_guard(Guard(outer.test, True)) in (
            Which.ONE,
            Which.OTHERS,
        ):
            return True
    return False


RULE = Rule(
    title="ranks run a loop, or its backward pass, a different number of times",
    why=(
        "In each round the ranks wait for one another. Those that continue wait for those that have left or "
        "skipped the round, until the watchdog ends the job. Shares cut by hand, such as "
        "`files[rank::world_size]`, are a note: they differ only where the number of items "
        "is no multiple of the world size."
    ),
    find=_find,
)
