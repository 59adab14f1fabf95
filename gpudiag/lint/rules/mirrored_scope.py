"""A Keras model that is built outside the scope of its strategy."""

import ast
from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule
from gpudiag.lint.trace import Step

_STRATEGIES = tuple(
    f"tensorflow.distribute.{prefix}{name}"
    for prefix in ("", "experimental.")
    for name in ("MirroredStrategy", "MultiWorkerMirroredStrategy", "TPUStrategy", "CentralStorageStrategy")
)
_MODELS = tuple(
    f"tensorflow.keras.{name}" for name in ("Sequential", "models.Sequential", "Model", "models.Model")
)


def _find(program: Program) -> Iterator[Mistake]:
    made = program.calls(*_STRATEGIES)
    if not made or program.mentions(
        "experimental_set_strategy", "run_distribute_coordinator", "Estimator", "RunConfig"
    ):
        return
    if program.owner or program.uses_horovod:
        return
    if not any(word in program.methods for word in ("fit", "compile")):
        return
    models = [
        *program.calls(*_MODELS),
        *(s for _, s in program.calls_within("tensorflow.keras.applications")),
    ]
    models += [s for s in program.steps if isinstance(s.node, ast.Call) and _is_model_class(program, s.node)]
    for step in models:
        if (
            step.where.entry is None
            and not _in_scope(step)
            and not _is_inner(program, step)
            and _is_fitted(program, step, models)
        ):
            strategy = _name_of(program, made[0])
            yield Mistake(
                step.node,
                "the model is built outside the scope of the strategy, on one GPU",
                f"with {strategy}.scope(): {program.statement_text(step.node)}",
            )
            return


def _is_model_class(program: Program, call: ast.Call) -> bool:
    """Whether a call builds a model of a class of this script."""
    owner = program.values.class_named(call.func)
    return owner is not None and program.values.derives_from(
        owner, "tensorflow.keras.Model", "tensorflow.keras.models.Model"
    )


def _in_scope(step: Step) -> bool:
    return any(
        "scope" in ast.unparse(item) or "strategy" in ast.unparse(item).lower() for item in step.where.withs
    )


def _is_inner(program: Program, step: Step) -> bool:
    """Whether the model is a part of another one."""
    return any(isinstance(outer, ast.Call | ast.List) for outer in program.names.ancestors(step.node))


def _is_fitted(program: Program, step: Step, models: list[Step]) -> bool:
    """Whether it is the model that is trained: its name is, or it is the only one there is."""
    inside = [other for other in models if _in_scope(other)]
    if not inside:
        return True
    statement = program.names.statement_of(step.node)
    targets = [ast.unparse(t) for t in statement.targets] if isinstance(statement, ast.Assign) else []
    return any(
        s.receiver is not None and ast.unparse(s.receiver) in targets for s in program.methods.get("fit", [])
    ) and not any(
        program.names.statement_of(o.node) is not None
        and ast.unparse(getattr(program.names.statement_of(o.node), "targets", [ast.Constant(0)])[0])
        in targets
        for o in inside
    )


def _name_of(program: Program, step: Step) -> str:
    statement = program.names.statement_of(step.node)
    return ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else "strategy"


RULE = Rule(
    title="a model is built outside the scope of MirroredStrategy",
    why=(
        "Only variables that are created inside `strategy.scope()` are mirrored. A model from outside "
        "trains on one GPU, or compile and fit raise a ValueError."
    ),
    find=_find,
)
