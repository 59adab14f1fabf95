"""A loss over gathered features, through which no gradient comes back."""

import ast
from collections.abc import Iterator

from gpudiag.lint.origins import behind, calls_behind
from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step, following
from gpudiag.lint.training import without_gradients

_MODELS = frozenset({"ddp", "fsdp1", "engine", "prepared"})
# What brings the gradient back in other ways.
_OTHER_WAYS = r"Function distributed\.nn diffdist \w*[Gg]rad\w*[Gg]ather\w* GatherLayer".split()


def _find(program: Program) -> Iterator[Mistake]:
    if program.mentions(*_OTHER_WAYS):
        return
    for step in program.calls("torch.distributed.all_gather", "torch.distributed.all_gather_into_tensor"):
        out, given = argument(step.node, 0, "tensor_list"), argument(step.node, 1, "tensor")
        if not isinstance(out, ast.Name) or given is None or without_gradients(program, step):
            continue
        made = program.values.reaching(given) if isinstance(given, ast.Name | ast.Attribute) else []
        sources = behind(program, given, *(value for b in made for value in program.values.given_for(b)))
        if any(isinstance(part, ast.Attribute) and part.attr in ("detach", "data") for part in sources):
            continue
        if (
            not _uses_again(program, step, ast.unparse(given))
            and program.values.depends_on(given, _MODELS)
            and _goes_into_a_loss(program, step, out)
        ):
            message = (
                f"no gradient comes back through {out.id}: the loss teaches nothing about what was gathered"
            )
            advice = f"put the rank's own back: {out.id}[dist.get_rank()] = {ast.unparse(given)}"
            yield Mistake(step.node, message, "", advice=advice)
            return


def _uses_again(program: Program, step: Step, given: str) -> bool:
    """Whether the function uses the rank's own features once more, or puts them into the list."""
    statement = program.names.statement_of(step.node)
    later = following(program.names, statement) if statement is not None else ()
    return any(
        ast.unparse(node) == given or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))
        for part in later
        for node in ast.walk(part)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
    )


def _goes_into_a_loss(program: Program, step: Step, out: ast.Name) -> bool:
    """Whether a backward pass depends on the gathered list, through what each function around it returns."""
    stack = step.where.stack
    for backward in program.backwards:
        depth = len(backward.where.stack)
        if backward.receiver is None or stack[:depth] != backward.where.stack:
            continue
        roots: list[ast.AST] = [backward.receiver, *getattr(backward.node, "args", [])]
        for function in stack[depth:]:
            calls = calls_behind(program, roots)
            if not any(program.values.function_called(call.func) is function for call in calls):
                break
            roots = [node.value for node in program.names.returns.get(function, []) if node.value is not None]
        else:
            if any(isinstance(part, ast.Name) and part.id == out.id for part in behind(program, *roots)):
                return True
    return False


RULE = Rule(
    title="a loss over gathered features gets no gradient from them",
    why=(
        "all_gather copies data and no graph: what it returns has no gradient, not even the own part. A "
        "contrastive loss over it trains nothing, or one side only. Put the own features back, or "
        "gather by torch.distributed.nn.functional.all_gather."
    ),
    find=_find,
)
