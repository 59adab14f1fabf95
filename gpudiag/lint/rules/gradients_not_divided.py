"""Gradients or parameters that are added up over the ranks and never divided."""

import ast
from collections.abc import Iterator

from gpudiag.lint.origins import behind
from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.rule import Rule
from gpudiag.model.lint import Severity

_WORLD = frozenset({"world_size", "world_size_text"})


def _find(program: Program) -> Iterator[Mistake]:
    yield from _find_scaled_losses(program)
    if program.owner or program.uses_deepspeed or _divides(program):
        return
    reported = set()
    for step in program.calls("torch.distributed.all_reduce", "torch.distributed.reduce"):
        given = argument(step.node, 0, "tensor")
        op = argument(step.node, 1, "op")
        if given is None or step.node in reported or (op is not None and "SUM" not in ast.unparse(op)):
            continue
        if "group" in ast.unparse(
            step.node
        ):  # copies of one parameter in several parts of a model are rightly summed
            continue
        what = _what(program, given)
        if what is None:
            continue
        reported.add(step.node)
        shown = ast.unparse(given)
        yield Mistake(
            step.node,
            f"{what} are added up over the ranks and never divided by their number",
            f"{program.statement_text(step.node)}; {shown} /= dist.get_world_size()",
        )


def _find_scaled_losses(program: Program) -> Iterator[Mistake]:
    """A mean loss times or over the number of ranks, before DDP takes the mean of their gradients."""
    if program.owner or not program.ddp_steps or program.mentions(r"\w*(?:reduce|gather|hook)\w*", "sum"):
        return
    reported = set()
    for step in program.backwards:
        for node in behind(program, step.receiver or step.node):
            statement = program.names.statement_of(node)
            scaled = statement if isinstance(statement, ast.AugAssign) else node
            scale = _scale(program, scaled)
            if scale is None or statement is None or statement in reported:
                continue
            reported.add(statement)
            times = "times" if isinstance(scale, ast.Mult) else "over"
            message = (
                f"DDP averages the gradients, and the loss {times} the number of ranks is no longer a mean"
            )
            advice = (
                "leave the number of ranks out of the loss, and out of the learning rate only if it is meant"
            )
            yield Mistake(statement, message, "", advice=advice, severity=Severity.NOTE)


def _scale(program: Program, node: ast.AST) -> ast.operator | None:
    """The operator by which a loss is multiplied or divided by the number of ranks."""
    if not isinstance(node, ast.BinOp | ast.AugAssign) or not isinstance(node.op, ast.Mult | ast.Div):
        return None
    factor = node.right if isinstance(node, ast.BinOp) else node.value
    return node.op if program.values.kinds(factor) & _WORLD else None


def _what(program: Program, given: ast.expr) -> str | None:
    text = ast.unparse(given)
    kinds = program.values.kinds(given)
    if "grad" in kinds or ".grad" in text:
        return "gradients"
    return "parameters" if kinds == {"parameter"} else None


def _divides(program: Program) -> bool:
    """Whether a quotient or a product anywhere uses the number of ranks, or AVG is used."""
    if program.mentions(
        "AVG", "div_", "mul_", "true_divide", "Adasum", "gradient_predivide_factor", "_foreach_div_"
    ):
        return True
    for node in program.nodes:
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(
            node.op, ast.Div | ast.FloorDiv | ast.Mult
        ):
            sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
            if any(program.values.depends_on(side, _WORLD) for side in sides):
                return True
            if any(
                word in ast.unparse(node)
                for word in ("world", "size", "num_workers", "nproc", "n_ranks", "ngpu", "grad")
            ):
                return True
    return False


RULE = Rule(
    title="gradients or parameters are summed over the ranks and never divided",
    why=(
        "all_reduce adds up. The sum acts as a learning rate that grows with the number of ranks; summed "
        "parameters are no usable model. DDP takes the mean: a mean loss times or over the number of ranks "
        "is scaled once more, which is a note."
    ),
    find=_find,
)
