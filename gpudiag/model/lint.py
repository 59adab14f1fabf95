"""What `gpudiag lint` found in training scripts: mistakes, each with its line, why, and the fixed line."""

from dataclasses import dataclass
from typing import ClassVar

from gpudiag.compat import StrEnum


class Severity(StrEnum):
    """Whether a mistake fails a lint: a finding does, a note does not."""

    FINDING = "finding"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Edit:
    """A part of one line of a file, and what stands there once it is fixed; columns count characters from 0.

    `line` is a number from 1, `column` the first character that goes, `end_column` the first that stays.
    An edit with `before` puts whole lines in front of its line and takes nothing away.
    """

    line: int
    column: int
    end_column: int
    text: str
    before: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a corrected statement goes, if it does not replace the one that was found.

    It goes in front of `line`, a number from 1 of the file, which may be one more than the file has, behind
    `column` blanks. With `moves` the statement that was found goes away; else it stays.
    """

    line: int
    column: int
    moves: bool


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One mistake in one file: where it stands, what it does to a run, and how the code should read."""

    code: str
    severity: Severity
    path: str
    line: int  # from 1, of the file, also in a notebook or a page
    column: int  # from 1, in characters
    source: str  # the line, without what stands before its first word
    message: str
    why: str
    fix: str  # the statement, or its first line, as it should read; empty where no one statement corrects it
    edits: tuple[Edit, ...] = ()  # of a fix that is certain, for --fix
    cell: int | None = None  # of a notebook, from 1
    place: Place | None = None  # of `fix`; None: it replaces the statement
    advice: str = ""  # what to change, in words, where `fix` is empty


@dataclass(frozen=True, slots=True)
class LintedFile:
    """One file that was given: what was read of it, or why it was not read."""

    path: str
    programs: int  # the scripts in it: one, or the fences of a page
    remark: str | None = None  # why it was not read, or what of it was left out
    ignored: int = 0  # mistakes that a comment of the file silences
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class LintReport:
    """`gpudiag.lint/2`: the mistakes of distributed training that were found in files, by file and line."""

    SCHEMA: ClassVar[str] = "gpudiag.lint/2"

    files: tuple[LintedFile, ...]
    findings: tuple[LintFinding, ...]

    @property
    def failed(self) -> bool:
        """Whether there is a finding that is more than a note."""
        return any(finding.severity is Severity.FINDING for finding in self.findings)
