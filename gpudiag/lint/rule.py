"""A rule of the linter: its entry in the catalogue, the functions that find the mistake, and its examples."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from gpudiag.lint.program import Mistake, Program
from gpudiag.lint.reader import Line
from gpudiag.model.lint import Severity

EXAMPLES = Path(__file__).with_name("rules") / "examples"
_CELL = re.compile(r"^# %% .*\n", re.MULTILINE)


class FindsCommands(Protocol):
    """A function that finds the mistake in lines of shell."""

    def __call__(self, lines: tuple[Line, ...], *, run: bool, editable: bool) -> Iterator[Mistake]:
        """The mistakes in lines that are run (of a script, a notebook) or only shown (of a page)."""


class Examples(NamedTuple):
    """Three scripts: the mistake alone, the corrected script, and a right one that looks like the mistake."""

    wrong: str
    right: str
    near_miss: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One mistake that the linter knows. Its code is `lint.` and the name of the file that has `find`."""

    title: str  # what is wrong, as a clause
    why: str  # what it does to a run, as sentences
    find: Callable[[Program], Iterable[Mistake]]
    severity: Severity = Severity.FINDING
    fixes: bool = False  # whether `--fix` can correct it
    find_commands: FindsCommands | None = None  # in shell scripts, and in the commands of pages and notebooks

    @property
    def name(self) -> str:
        """The name of the rule's file: `set_epoch_missing`."""
        return self.find.__module__.rpartition(".")[2]

    @property
    def code(self) -> str:
        """The rule's code: `lint.set_epoch_missing`."""
        return f"lint.{self.name}"

    def read_examples(self) -> Examples:
        """The rule's examples: the three cells of its file in rules/examples, in the order of `Examples`.

        Raises:
            ValueError: the file has another number of cells.
        """
        before, *cells = _CELL.split((EXAMPLES / f"{self.name}.py").read_text("utf-8"))
        if before or len(cells) != len(Examples._fields):
            raise ValueError(f"the examples of {self.code} are three cells, each below a line `# %% NAME`")
        return Examples(*(cell.strip("\n") + "\n" for cell in cells))
