"""A broadcast that names no source."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_keyword
from gpudiag.lint.program import Mistake, Program, argument, has_star, keyword
from gpudiag.lint.rule import Rule
from gpudiag.model.lint import Severity


def _find(program: Program) -> Iterator[Mistake]:
    told = set()
    for name, place, word in (("broadcast", 1, "src"), ("reduce", 1, "dst")):
        for step in program.calls(f"torch.distributed.{name}"):
            call = step.node
            if not isinstance(call, ast.Call) or call in told or has_star(call):
                continue
            if argument(call, place, word) is None and keyword(call, f"group_{word}") is None:
                told.add(call)
                end = call.end_col_offset or 0
                edits = (
                    program.edit_span(call.end_lineno or 1, end - 1, end - 1, f", {word}=0")
                    if call.args and call.end_lineno == call.lineno
                    else ()
                )
                yield Mistake(
                    call, f"{name} needs its argument {word}", with_keyword(program, call, word, "0"), edits
                )


RULE = Rule(
    code="lint.broadcast_without_source",
    severity=Severity.FINDING,
    title="broadcast or reduce lacks the rank that sends or receives",
    why="torch raises an error: `src` of broadcast and `dst` of reduce have no useful default.",
    wrong="""\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.broadcast(torch.zeros(1))
dist.destroy_process_group()
""",
    right="""\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.broadcast(torch.zeros(1), src=0)
dist.destroy_process_group()
""",
    near_miss="""\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.new_group([0, 1])
dist.broadcast(torch.zeros(1), group=group, group_src=0)
dist.all_reduce(torch.zeros(1))
dist.destroy_process_group()
""",
    find=_find,
    fixes=True,
)
