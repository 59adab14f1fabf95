"""The fixes that are certain, as a diff, and written where they are asked for."""

import difflib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpudiag.errors import GpudiagError
from gpudiag.lint.reader import SourceFile, Unreadable, read_source
from gpudiag.model.lint import Edit, LintFinding, LintReport

_LINE_ENDS = re.compile(r"(\r\n|\n|\r)")


@dataclass(frozen=True, slots=True)
class FixedFile:
    """One file as it is and as it would be, and how many mistakes of it are fixed."""

    path: str
    before: str
    after: str
    encoding: str
    mistakes: int

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        lines = difflib.unified_diff(
            _shown(self.before), _shown(self.after), f"a/{self.path}", f"b/{self.path}", lineterm=""
        )
        return "".join(f"{line}\n" for line in lines)


def plan_fixes(report: LintReport) -> list[FixedFile]:
    """Each file that certain fixes change; of two in one place the first; no file that has changed since."""
    by_path: dict[str, list[LintFinding]] = {}
    for finding in report.findings:
        if finding.edits:
            by_path.setdefault(finding.path, []).append(finding)
    fixed = []
    for path, findings in by_path.items():
        try:
            source = read_source(Path(path))
        except Unreadable:
            continue
        changed = _fixed(source, findings)
        if changed is not None:
            fixed.append(changed)
    return fixed


def _fixed(source: SourceFile, findings: list[LintFinding]) -> FixedFile | None:
    pieces = _LINE_ENDS.split(source.text)
    lines, ends = pieces[::2], [*pieces[1::2], ""]
    taken: list[Edit] = []
    fixed = 0
    for finding in findings:
        if not _fits(lines, finding) or any(
            _overlap(edit, other) for edit in finding.edits for other in taken
        ):
            continue
        new = [edit for edit in finding.edits if edit not in taken]
        taken += new
        fixed += 1
    if not taken:
        return None
    for edit in sorted(taken, key=lambda e: (e.line, not e.before, e.column), reverse=True):
        place = edit.line - 1
        if edit.before:
            lines.insert(place, edit.text)
            ends.insert(place, source.newline)
        else:
            lines[place] = lines[place][: edit.column] + edit.text + lines[place][edit.end_column :]
    after = "".join(line + end for line, end in zip(lines, ends, strict=True))
    return FixedFile(source.path, source.text, after, source.encoding, fixed)


def _fits(lines: list[str], finding: LintFinding) -> bool:
    """Whether the file still has the line that was judged."""
    return 0 < finding.line <= len(lines) and finding.source in lines[finding.line - 1]


def _overlap(one: Edit, other: Edit) -> bool:
    if one == other or one.line != other.line or one.before or other.before:
        return False
    return (one.column < other.end_column and other.column < one.end_column) or one.column == other.column


def write_fixes(fixed: Iterable[FixedFile]) -> None:
    """Write the files, each whole or not at all, in its encoding, with its mode.

    Raises:
        GpudiagError: a file cannot be written; it is as it was.
    """
    for file in fixed:
        target = Path(file.path).resolve()
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            partial.write_bytes(file.after.encode(file.encoding))
            partial.chmod(stat.S_IMODE(target.stat().st_mode))
            partial.replace(target)
        except (OSError, UnicodeEncodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise GpudiagError(
                f"cannot fix {file.path}: {reason}", hint="the file was not changed"
            ) from error
        finally:
            partial.unlink(missing_ok=True)


def _shown(text: str) -> list[str]:
    return [piece for piece in _LINE_ENDS.split(text)[::2]]
