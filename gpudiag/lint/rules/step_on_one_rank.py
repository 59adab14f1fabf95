"""A step of the optimizer, the scheduler or the backward pass on one rank only."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import moved, out_of
from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.ranks import Which
from gpudiag.lint.rule import Rule

_STEPPED = {
    "optimizer": "the optimizer",
    "hvd_optimizer": "the optimizer",
    "scheduler": "the scheduler",
    "scaler": "the scaler",
    "engine": "the engine",
}

_SENDS = r"\w*(?:broadcast|sync_)\w*"
_EXCHANGED = frozenset({"ddp", "fsdp1", "engine", "prepared", "scaler", "accelerator"})


def _find(program: Program) -> Iterator[Mistake]:
    shared = program.ddp_steps or program.opens_group or program.uses_horovod
    if program.owner or not (shared or program.uses_deepspeed or program.uses_accelerate):
        return
    reported: set[ast.AST] = set()
    loads = program.methods.get("load_state_dict", []) if not program.mentions(_SENDS) else []
    for step in (*program.methods.get("step", []), *program.methods.get("backward", []), *loads):
        call = step.node
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Attribute)
            or call in reported
            or step.where.handling
        ):
            continue
        if call.func.attr == "backward" and not _comes_from_a_wrapped_model(program, call):
            continue
        if program.which_ranks(step) is not Which.ONE or "world_size" in " ".join(
            ast.unparse(g.test) for g in step.where.guards
        ):
            continue
        what = (
            "the backward pass"
            if call.func.attr == "backward"
            else "the model"
            if step in loads and _is_in_ddp(program, call.func.value)
            else _what(program, call.func.value)
        )
        others = [
            o
            for o in program.methods.get(call.func.attr, [])
            if program.which_ranks(o) in (Which.OTHERS, Which.PERHAPS)
        ]
        if (
            what is None
            or others
            or any(
                isinstance(loop, ast.For)
                and "range" in ast.unparse(loop.iter)
                and "world" in ast.unparse(loop.iter)
                for loop in step.where.loops
            )
        ):
            continue
        reported.add(call)
        message = (
            f"{what} is {'loaded' if step in loads else 'stepped'} on one rank only"
            if what != "the backward pass"
            else "only one rank runs the backward pass"
        )
        place = next((p for g in step.where.guards if (p := out_of(program, call, g)) is not None), None)
        yield moved(program, call, message, place, "let every rank do it")


def _is_in_ddp(program: Program, node: ast.expr) -> bool:
    """Whether an expression is a model in DDP, or what is inside: DDP sends no parameters later."""
    held = node.value if isinstance(node, ast.Attribute) and node.attr == "module" else node
    return program.values.kinds(held) == {"ddp"}


def _comes_from_a_wrapped_model(program: Program, call: ast.Call) -> bool:
    """Whether the loss is of a model whose gradients the ranks exchange, and not of a reference model."""
    func = call.func
    losses = [func.value, *call.args] if isinstance(func, ast.Attribute) else []
    return any(program.values.depends_on(loss, _EXCHANGED) for loss in losses)


def _what(program: Program, receiver: ast.expr) -> str | None:
    values = program.values.of(receiver)
    held = [v.node if v.kind == "prepared" else receiver for v in values]
    kinds = frozenset().union(*map(program.values.kinds, held))
    found = [word for kind, word in _STEPPED.items() if kind in kinds]
    return found[0] if found and kinds <= set(_STEPPED) else None


RULE = Rule(
    title="the optimizer, the scheduler or the backward pass runs on one rank only",
    why=(
        "DDP keeps the ranks equal only while all make the same steps. A scheduler stepped on rank 0 alone "
        "gives the ranks different learning rates, and the models drift apart; a backward pass on one rank "
        "hangs."
    ),
    find=_find,
)
