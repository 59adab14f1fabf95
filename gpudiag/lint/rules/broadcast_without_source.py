"""A broadcast that names no source."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_keyword
from gpudiag.lint.program import Mistake, Program, argument, has_star, keyword
from gpudiag.lint.rule import Rule


def _find(program: Program) -> Iterator[Mistake]:
    reported = set()
    for name, place, word in (("broadcast", 1, "src"), ("reduce", 1, "dst")):
        for step in program.calls(f"torch.distributed.{name}"):
            call = step.node
            if not isinstance(call, ast.Call) or call in reported or has_star(call):
                continue
            if argument(call, place, word) is None and keyword(call, f"group_{word}") is None:
                reported.add(call)
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
    title="broadcast or reduce lacks the rank that sends or receives",
    why="torch raises an error: `src` of broadcast and `dst` of reduce have no useful default.",
    find=_find,
    fixes=True,
)
