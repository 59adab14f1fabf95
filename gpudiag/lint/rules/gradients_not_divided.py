"""Gradients or parameters that are added up over the ranks and never divided."""

import ast
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program, argument
from gpudiag.lint.rule import Rule

_WORLD = frozenset({"world_size", "world_size_text"})


def _find(program: Program) -> Iterator[Mistake]:
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
        "parameters are no usable model."
    ),
    find=_find,
)
