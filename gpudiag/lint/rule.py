"""What a rule is: its entry in the catalogue, its three examples, and the functions that look."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.reader import Line
from gpudiag.model.lint import Severity


class FindsCommands(Protocol):
    """What looks at lines of shell."""

    def __call__(self, lines: tuple[Line, ...], *, run: bool, editable: bool) -> Iterator[Mistake]:
        """The mistakes in lines that are run (of a script, a notebook) or only shown (of a page)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One mistake that the linter knows; `wrong` has it, `right` is fixed, `near_miss` looks like it and is well.

    `fixes` tells that `--fix` can fix it. The three examples are its tests.
    """

    code: str  # lint.set_epoch_missing
    severity: Severity
    title: str  # what is wrong, as a clause
    why: str  # what it does to a run, as sentences
    wrong: str
    right: str
    near_miss: str
    find: Callable[[Program], Iterable[Mistake]]
    fixes: bool = False
    source: str = ""
    find_commands: FindsCommands | None = None  # in shell scripts, and in the commands of pages and notebooks
