"""A collective that only some ranks call."""

import ast
import re
from collections.abc import Iterator

from gpudiag.lint import vocabulary as known
from gpudiag.lint.collectives import collectives_of, is_of_a_part
from gpudiag.lint.corrections import moved, out_of
from gpudiag.lint.origins import origins
from gpudiag.lint.program import Mistake, Program, keyword
from gpudiag.lint.ranks import Which, rounds_of
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Guard, Step

_DRAWS = frozenset("random rand randn randint randrange uniform choice binomial bernoulli sample".split())
_ONE_PROCESS = re.compile(r"world_size\w*(?:\(\))?\s*(?:[=!<>]=?)\s*[12]\b")


def _find(program: Program) -> Iterator[Mistake]:
    if program.owner == "torch's RPC":  # its workers are of several kinds
        return
    steps = [(name, step) for name, step in collectives_of(program) if not is_of_a_part(name, step)]
    one_sided = [
        (name, step) for name, step in steps if program.which_ranks(step) in (Which.ONE, Which.OTHERS)
    ]
    yield from _find_on_some(program, steps)
    yield from _find_by_progress(program, steps)
    yield from _find_by_chance(program, steps)
    reported = set()
    for name, step in one_sided:
        if step.node in reported or step.where.handling:
            continue
        which = program.which_ranks(step)
        guard = _deciding(program, step)
        chooser = guard.test if guard is not None else (*step.where.decorators, None)[0]
        if chooser is None or any(
            _answers(program, step, other, which) for short, other in steps if short == name
        ):
            continue
        if guard is not None and _has_other_side(guard, steps):
            continue
        if _is_paired_elsewhere(program, name, which, steps) or _starts_alone(program, step):
            continue
        reported.add(step.node)
        line = program.line_at(chooser.lineno).number
        comes, opens = (
            ("only one rank calls", "only one rank opens")
            if which is Which.ONE
            else ("all ranks but one call", "all ranks but one open")
        )
        if name == "init_process_group":
            text = f"{opens} the process group (line {line}); the wait ends with a timeout"
        else:
            text = f"{comes} {name} (line {line}); the others never do, and the job hangs"
        yield moved(
            program,
            step.node,
            text,
            out_of(program, step.node, guard) if guard is not None else None,
            f"call {name} on every rank, outside of `{'if ' if guard else '@'}{ast.unparse(chooser)}`",
        )


def _find_on_some(program: Program, steps: list[tuple[str, Step]]) -> Iterator[Mistake]:
    """Collectives of all ranks under a condition that several ranks meet, and not all."""
    reported: set[ast.AST] = set()
    for name, step in steps:
        if step.node in reported or step.where.handling or program.which_ranks(step) is not Which.PERHAPS:
            continue
        guard = next((g for g in step.where.guards if program.ranks.lets_some_through(g)), None)
        if guard is None or guard.test in reported or name == "init_process_group":
            continue
        if _is_of_the_job(program, guard, steps):
            continue
        if _has_other_side(guard, steps) and not _makes_another(name, step, guard, steps):
            continue
        others = [other for short, other in steps if short == name and other.node is not step.node]
        if (
            any(program.which_ranks(other) is not None and _same_place(step, other) for other in others)
            and name not in known.GROUP_MAKERS
        ):
            continue
        reported |= {step.node, *([guard.test] if name in known.GROUP_MAKERS else [])}
        line = program.line_at(guard.test.lineno).number
        text = f"only some ranks call {name} (line {line}); the others never do, and the job hangs"
        advice = (
            f"call {name} on every rank, in one order, and use what it gives only on the members"
            if name in known.GROUP_MAKERS
            else f"give {name} the group of these ranks, or call it on every rank"
        )
        yield moved(program, step.node, text, out_of(program, step.node, guard), advice)


def _find_by_progress(program: Program, steps: list[tuple[str, Step]]) -> Iterator[Mistake]:
    """Collectives by the count of a progress bar that is disabled on the other ranks: there it stays 0."""
    for name, step in steps:
        for guard in step.where.guards:
            bars = [
                value
                for part in ast.walk(guard.test)
                if isinstance(part, ast.Attribute) and part.attr == "n" and isinstance(part.value, ast.Name)
                for binding in program.values.reaching(part.value)
                if (value := keyword(binding.value or part, "disable")) is not None
            ]
            if any(program.ranks.of_guard(Guard(off, False)) is Which.ONE for off in bars):
                line = program.line_at(guard.test.lineno).number
                text = f"the progress bar counts on one rank only (line {line}): not all ranks call {name}"
                yield Mistake(step.node, text, "", advice="count the steps in a variable of every rank")
                return


def _find_by_chance(program: Program, steps: list[tuple[str, Step]]) -> Iterator[Mistake]:
    """Collectives under a condition that each rank draws for itself, without a seed that they share."""
    if program.owner or program.mentions(r"\w*[Ss]eed\w*", "RandomState", "default_rng"):
        return
    sent = {
        ast.unparse(part)
        for _, step in steps
        if isinstance(step.node, ast.Call)
        for part in (*step.node.args, *(k.value for k in step.node.keywords))
    }
    for name, step in steps:
        for guard in step.where.guards:
            parts = list(origins(program, guard.test))
            drawn = [p for p in parts if isinstance(p, ast.Call) and _draws(program, p)]
            if drawn and not any(ast.unparse(p) in sent for p in parts if isinstance(p, ast.Name)):
                line = program.line_at(drawn[0].lineno).number
                text = f"each rank draws by itself (line {line}) whether it calls {name}: those that do wait"
                advice = "seed all ranks alike, or broadcast the drawn number first"
                yield Mistake(step.node, text, "", advice=advice)
                return


def _draws(program: Program, call: ast.Call) -> bool:
    """Whether a call draws a number from a generator that nothing has seeded."""
    name = program.names.qualify(call.func) or ""
    library, _, drawn = name.rpartition(".")
    return library in ("random", "numpy.random", "torch") and drawn in _DRAWS


def _is_of_the_job(program: Program, guard: Guard, steps: list[tuple[str, Step]]) -> bool:
    """Whether the ranks that a condition excludes never join the job, or it compares with the job's size."""
    opened = [step for name, step in steps if name == "init_process_group"]
    if any((guard.test, guard.holds) == (g.test, g.holds) for step in opened for g in step.where.guards):
        return True
    sizes = {ast.unparse(size) for step in opened if (size := keyword(step.node, "world_size")) is not None}
    for node in program.nodes:  # `assert cfg.tensor_parallel == dist.get_world_size()`
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = [node.left, node.comparators[0]]
            if any("world_size" in program.values.kinds(side) for side in sides):
                sizes |= {ast.unparse(side) for side in sides}
    return any(
        ast.unparse(part) in sizes
        for test in ast.walk(guard.test)
        if isinstance(test, ast.Compare)
        for part in (test.left, *test.comparators)
        if not isinstance(part, ast.Constant) and not program.values.kinds(part) & {"rank", "local_rank"}
    )


def _same_place(step: Step, other: Step) -> bool:
    return other.where.stack[-1:] == step.where.stack[-1:] or other.where.entry is step.where.entry


def _deciding(program: Program, step: Step) -> Guard | None:
    return next(
        (
            g
            for g in (*step.where.guards, *rounds_of(step.where))
            if program.ranks.of_guard(g) in (Which.ONE, Which.OTHERS)
        ),
        None,
    )


def _answers(program: Program, step: Step, other: Step, which: Which | None) -> bool:
    """Whether another collective is the counterpart that the remaining ranks call."""
    theirs = program.which_ranks(other)
    opposite = Which.OTHERS if which is Which.ONE else Which.ONE
    if theirs is not opposite and not (theirs is which is Which.ONE and _are_two(program, step, other)):
        return False
    if step.where.stack[-1:] == other.where.stack[-1:] and step.where.stack:
        # One rank alone calls the function that has both sides: it finds no other rank in there.
        ours, answer = _home(program, _deciding(program, step)), _home(program, _deciding(program, other))
        return ours is step.where.stack[-1] or answer is not step.where.stack[-1]
    return _same_place(step, other)


def _home(program: Program, guard: Guard | None) -> ast.AST | None:
    return program.names.function_around(guard.test) if guard is not None else None


def _are_two(program: Program, step: Step, other: Step) -> bool:
    """Whether two steps are for two ranks, each by its number: a job of two has no more."""
    numbers: list[ast.expr | None] = []
    for guard in (_deciding(program, step), _deciding(program, other)):
        compared = guard.test if guard is not None and guard.holds else None
        numbers.append(compared.comparators[0] if isinstance(compared, ast.Compare) else None)
    one, two = numbers
    return isinstance(one, ast.Constant) and isinstance(two, ast.Constant) and one.value != two.value


def _has_other_side(guard: Guard, steps: list[tuple[str, Step]]) -> bool:
    """Whether the other branch has a collective too: another rule reports collectives that differ."""
    return any(
        (theirs.test, theirs.holds) == (guard.test, not guard.holds)
        for _, other in steps
        for theirs in other.where.guards
    )


def _makes_another(name: str, step: Step, guard: Guard, steps: list[tuple[str, Step]]) -> bool:
    """Whether the other branch makes a group of other ranks: all ranks must make both, in one order."""
    others = [
        ast.unparse(other.node)
        for short, other in steps
        if short == name
        and any((g.test, g.holds) == (guard.test, not guard.holds) for g in other.where.guards)
    ]
    return name == "new_group" and ast.unparse(step.node) not in others


def _is_paired_elsewhere(
    program: Program, name: str, which: Which | None, steps: list[tuple[str, Step]]
) -> bool:
    """Whether there is a counterpart under an unknown condition: then nothing is certain."""
    return any(program.which_ranks(other) is Which.PERHAPS and short == name for short, other in steps)


def _starts_alone(program: Program, step: Step) -> bool:
    """Whether the condition also tests that there is one process."""
    return any(_ONE_PROCESS.search(ast.unparse(guard.test)) for guard in step.where.guards)


RULE = Rule(
    title="a barrier or another collective that not all ranks call",
    why=(
        "A collective ends when every rank of the group has called it. If only some call it, it never ends: "
        "the job hangs until the watchdog kills it, often after half an hour."
    ),
    find=_find,
)
