"""What a rule is: its entry in the catalogue, its three examples, and the function that looks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpudiag.lint.program import Mistake, Program
from gpudiag.model.lint import Severity


@dataclass(frozen=True, slots=True)
class Rule:
    """One mistake that the linter knows; `wrong` has it, `right` is mended, `near_miss` looks like it and is well.

    `fixes` tells that `--fix` can mend it. The three examples are its tests.
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
