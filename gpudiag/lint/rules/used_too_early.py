"""A model before it exists, or the process group before it is open."""

import ast
from collections.abc import Iterator
from itertools import pairwise

from gpudiag.lint.corrections import behind, in_front_of, moved
from gpudiag.lint.program import Mistake, Program, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step
from gpudiag.lint.training import optimizer_calls, owner_of_parameters
from gpudiag.lint.vocabulary import DDP_CLASSES, TORCH_COLLECTIVES

_CLOSES = ("\\w*destroy\\w*", "\\w*cleanup\\w*", "\\w*teardown\\w*", "shutdown", "is_initialized", "init_rpc")


def _find(program: Program) -> Iterator[Mistake]:
    if program.script.whole:  # the fences of a page do not run one after the other
        yield from _find_optimizers(program)
        yield from _find_group(program)
        yield from _find_again(program)


def _find_optimizers(program: Program) -> Iterator[Mistake]:
    reported = set()
    for step in optimizer_calls(program):
        owner = owner_of_parameters(step.node)
        if not isinstance(owner, ast.Name) or step.node in reported:
            continue
        scope = program.names.find_scope(owner)
        if scope is None or scope is not program.names.scope_of(owner):
            continue
        statement = program.names.statement_of(step.node)
        bindings = scope.bindings[owner.id]
        order = program.names.order
        here = order.get(statement, 0) if statement is not None else 0
        if any(b.parameter or order.get(b.node, 0) < here for b in bindings):
            continue
        loops = [
            a for a in program.names.ancestors(step.node) if isinstance(a, ast.For | ast.While | ast.AsyncFor)
        ]
        if loops or any(isinstance(b.node, ast.FunctionDef | ast.comprehension) for b in bindings):
            continue
        reported.add(step.node)
        line = program.line_at(getattr(bindings[0].node, "lineno", 1)).number
        yield moved(
            program,
            step.node,
            f"the optimizer takes the parameters of {owner.id}, which does not exist before line {line}",
            behind(program, bindings[0].node, moves=step.node),
            f"build the optimizer after line {line}",
        )


def _find_group(program: Program) -> Iterator[Mistake]:
    """DDP, a collective or the rank before init_process_group, all in one run of statements."""
    opened = [s for s in program.opens_group if not s.where.handling]
    if len(opened) != 1 or program.owner or program.uses_deepspeed or program.uses_accelerate:
        return
    needs = (
        *sorted(DDP_CLASSES),
        "torch.distributed.get_rank",
        "torch.distributed.get_world_size",
        *(f"torch.distributed.{n}" for n in sorted(TORCH_COLLECTIVES)),
    )
    place = program.steps.index(opened[0])
    for step in program.calls(*needs):
        if (
            program.steps.index(step) < place
            and _same_run(step, opened[0])
            and keyword(step.node, "process_group") is None
        ):
            what = ast.unparse(step.node.func) if isinstance(step.node, ast.Call) else "this"
            line = program.line_at(getattr(step.node, "lineno", 1)).number
            yield moved(
                program,
                step.node,
                f"{what} is called before the process group is open",
                behind(program, opened[0].node, moves=step.node),
                f"open the process group before line {line}",
            )
            return


def _find_again(program: Program) -> Iterator[Mistake]:
    """A group that is opened while it is open, and its address where it is set only then."""
    opened = [s for s in program.opens_group if _is_always(s)]
    if not opened or program.owner or (len(opened) > 1 and program.mentions(*_CLOSES)):
        return
    for first, again in pairwise(s for s in opened if not s.where.spawned):
        if first.where.entry is again.where.entry:
            line = program.line_at(getattr(first.node, "lineno", 1)).number
            message = f"the process group is opened again, which is open since line {line}"
            yield Mistake(
                again.node, message, "", advice="open it once, or call destroy_process_group() before"
            )
            return
    before = True
    for step in program.steps:
        before = before and step.node is not opened[0].node
        name = next((n for n in ("MASTER_ADDR", "MASTER_PORT") if _sets(program, step.node, n)), None)
        if name is not None and before:
            return
        if name is not None and step.where.entry is opened[0].where.entry and _is_always(step):
            message = f"{name} is set after the process group was opened, and has no effect there"
            place = in_front_of(program, opened[0].node, moves=step.node)
            yield moved(program, step.node, message, place, "set it before init_process_group")
            return


def _sets(program: Program, node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call):
        return program.names.qualify(node.func) == "os.environ.setdefault" and is_constant(node.args[0], name)
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Subscript)
        and program.names.qualify(target.value) == "os.environ"
        and is_constant(target.slice, name)
        for target in node.targets
    )


def _is_always(step: Step) -> bool:
    """Whether a step is made in every run that begins where it does."""
    return not step.where.handling and all("__name__" in ast.unparse(g.test) for g in step.where.guards)


def _same_run(step: Step, opened: Step) -> bool:
    ours, theirs = step.where, opened.where
    plain = [g for g in ours.guards if "__name__" not in ast.unparse(g.test)]
    return (
        not plain
        and ours.entry is theirs.entry
        and ours.spawned is theirs.spawned
        and not ours.handling
        and not theirs.loops
    )


RULE = Rule(
    title="a model or the process group is used before it is there, or the group is opened twice",
    why=(
        "The script ends at this line: with a NameError, because the default process group has not been "
        "initialised, or because it has been already. An address that is set later is never read."
    ),
    find=_find,
)
