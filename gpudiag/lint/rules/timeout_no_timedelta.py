"""A timeout of a process group that is a number, or days where seconds were meant."""

import ast
from collections.abc import Iterator

from gpudiag.lint.corrections import with_replaced
from gpudiag.lint.program import Mistake, Program, argument, keyword
from gpudiag.lint.rule import Rule
from gpudiag.lint.vocabulary import INIT


def _find(program: Program) -> Iterator[Mistake]:
    for step in program.calls(INIT, "torch.distributed.new_group"):
        given = keyword(step.node, "timeout")
        if given is not None and program.values.is_only(given, "int", "float"):
            fix = with_replaced(program, given, f"datetime.timedelta(seconds={ast.unparse(given)})")
            yield Mistake(
                given, "the timeout is a number: torch raises a TypeError for all but a timedelta", fix
            )
            return
        for made in (value.node for value in program.values.of(given) if isinstance(value.node, ast.Call)):
            days = argument(made, 0, "") if program.names.qualify(made.func) == "datetime.timedelta" else None
            number = days.value if isinstance(days, ast.Constant) else None
            if isinstance(number, int) and number > 30:  # nobody means that
                message = f"the timeout is {number} days: the first number of timedelta is days"
                fix = with_replaced(program, made, f"datetime.timedelta(seconds={number})")
                yield Mistake(made, message, fix)
                return


RULE = Rule(
    title="the timeout of a process group is a number, or days in place of seconds",
    why=(
        "torch takes a datetime.timedelta and raises a TypeError for a number. Its first number is "
        "days: timedelta(1800) lets a hanging job wait for five years."
    ),
    find=_find,
)
