"""A checkpoint saved in the background over the process group that training uses too."""

import ast
from collections.abc import Iterator

from gpudiag.lint.collectives import collectives_of, is_of_a_part
from gpudiag.lint.corrections import with_keyword
from gpudiag.lint.program import Mistake, Program, is_constant, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import GROUP_MAKERS
from gpudiag.model.lint import Severity

_SAVE = "torch.distributed.checkpoint.async_save"


def _find(program: Program) -> Iterator[Mistake]:
    reported: set[ast.AST] = set()
    others = [
        name
        for name, step in collectives_of(program)
        if name != "init_process_group" and name not in GROUP_MAKERS and not is_of_a_part(name, step)
    ]
    for step in program.calls(_SAVE):
        call = step.node
        if not isinstance(call, ast.Call) or call in reported or step.where.handling:
            continue
        given = keyword(call, "process_group")
        if given is not None and not is_constant(given, None):
            continue
        if is_constant(keyword(call, "no_dist"), True) or "PROCESS" in ast.unparse(call):
            continue  # a process of its own has a group of its own
        if any(k.arg is None for k in call.keywords):
            continue
        reported.add(call)
        message = "async_save exchanges in a thread, over the default process group"
        if others:
            message += (
                f"; {others[0]} of the main thread can come between, and the ranks then wait in different "
                "calls"
            )
        yield Mistake(
            call,
            message,
            with_keyword(program, call, "process_group", "checkpoint_group"),
            severity=Severity.FINDING if others else Severity.NOTE,
        )


# Source: torch's documentation of distributed.checkpoint; a report of wrong checkpoints (KempnerForge#104).
RULE = Rule(
    title="async_save has no process group of its own",
    why=(
        "async_save gathers and scatters its plan in a background thread. On a group that the main thread "
        "uses too, the order of the calls differs from rank to rank, and the job hangs or exchanges wrong "
        'data. Make `checkpoint_group = dist.new_group(backend="gloo")` once, on all ranks, and give it as '
        "process_group. Without other collectives on the default group it is a note."
    ),
    find=_find,
)
