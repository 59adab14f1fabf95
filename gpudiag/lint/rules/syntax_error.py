"""A script that does not parse."""

from collections.abc import Iterator

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.rule import Rule


def _find(program: Program) -> Iterator[Mistake]:
    """Nothing: the linter reports what does not parse before there is a program."""
    yield from ()


RULE = Rule(
    title="the script is not valid Python",
    why=(
        "Python refuses the whole file. In a notebook only that cell is left out; a sketch in a page is no "
        "mistake."
    ),
    find=_find,
)
