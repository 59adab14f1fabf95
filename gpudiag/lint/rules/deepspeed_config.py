"""DeepSpeed's configuration under a name that initialize() does not have."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.training import keyword_node
from gpudiag.model.lint import Severity

_PARAMETERS = frozenset(
    """
    args model optimizer model_parameters training_data lr_scheduler distributed_port mpu dist_init_required
    collate_fn config mesh_param config_params
    """.split()
)


def _find(program: Program) -> Iterator[Mistake]:
    seen = set()
    for step in program.calls("deepspeed.initialize"):
        call = step.node
        if not isinstance(call, ast.Call) or call in seen:
            continue
        seen.add(call)
        for given in call.keywords:
            if given.arg is None or given.arg in _PARAMETERS:
                continue
            if "conf" in given.arg:
                yield Mistake(
                    call,
                    f"initialize() has no argument {given.arg}; the configuration is given as config",
                    _renamed(program, call, given.arg),
                )
            else:
                yield Mistake(
                    call, f"initialize() has no argument {given.arg}", _without(program, call, given.arg)
                )
        old = keyword(call, "config_params")
        if old is not None and keyword(call, "config") is None:
            node = keyword_node(call, "config_params")
            edits = (
                program.edit_span(
                    node.lineno, node.col_offset, node.col_offset + len("config_params"), "config"
                )
                if node is not None
                else ()
            )
            yield Mistake(
                call,
                "config_params is the old name of config",
                _renamed(program, call, "config_params"),
                edits,
                Severity.NOTE,
            )


def _renamed(program: Program, call: ast.Call, name: str) -> str:
    keywords = [ast.keyword("config", k.value) if k.arg == name else k for k in call.keywords]
    return with_replaced(program, call, ast.unparse(ast.Call(call.func, call.args, keywords)))


def _without(program: Program, call: ast.Call, name: str) -> str:
    keywords = [k for k in call.keywords if k.arg != name]
    return with_replaced(program, call, ast.unparse(ast.Call(call.func, call.args, keywords)))


RULE = Rule(
    title="deepspeed.initialize gets an unknown argument",
    why=(
        "Python refuses an unknown keyword with a TypeError. `config_params` is only the old name of "
        "`config` and still works: a note."
    ),
    find=_find,
    fixes=True,
)
