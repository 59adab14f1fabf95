"""What a lint found, as text: each mistake with its line, why, and the corrected code."""

from gpudiag.model.lint import LintFinding, LintReport, Severity
from gpudiag.render.style import PLAIN, Style, one_line, prose_columns, wrapped

_INDENT = "  "
_MAX_SOURCE = 300


def render_lint(report: LintReport, style: Style = PLAIN) -> str:
    """The findings by file and line, then what was not read, then the count."""
    lines: list[str] = []
    explained: set[str] = set()
    for finding in report.findings:
        lines += [*_finding(finding, style, finding.code not in explained), ""]
        explained.add(finding.code)
    remarks = [
        line
        for file in report.files
        if file.remark
        for line in wrapped(f"{one_line(file.path)}: {one_line(file.remark)}.", indent=_INDENT)
    ]
    if remarks:
        lines += [*remarks, ""]
    return "\n".join([*lines, *_summary(report)]) + "\n"


def _finding(finding: LintFinding, style: Style, first: bool) -> list[str]:
    """A mistake; the reason is printed once for each code."""
    word = finding.severity.value.upper()
    cell = f" (cell {finding.cell})" if finding.cell is not None else ""
    place = f"{one_line(finding.path)}:{finding.line}{cell}"
    heading = wrapped(
        f"{word} {finding.code}: {one_line(finding.message)}", first=f"{place}: ", indent=_INDENT
    )
    heading = [
        line.replace(word, style.paint(word, "red" if finding.severity is Severity.FINDING else "yellow"), 1)
        if n == 0
        else line
        for n, line in enumerate(heading)
    ]
    lines = [*heading, *_code("now:   ", finding.source)]
    if finding.fix:
        lines += _code("better:", f"{finding.fix}{_where(finding)}")
    elif finding.advice:
        lines += wrapped(f"{one_line(finding.advice)}.", indent=_INDENT + " " * 8, first=f"{_INDENT}do:     ")
    if first:
        lines += wrapped(finding.why, indent=_INDENT + " " * 5, first=f"{_INDENT}why: ")
    return lines


def _where(finding: LintFinding) -> str:
    """A comment with the place of the statement; empty where it replaces the one that was found."""
    if finding.place is None:
        return ""
    moved = "move it" if finding.place.moves else "add it"
    return f"  # {moved} in front of line {finding.place.line}"


def _code(label: str, text: str) -> list[str]:
    """A line of code after its label.

    One that is too long for the screen goes on below, unbroken words whole.
    """
    shown = one_line(text, _MAX_SOURCE)
    if len(_INDENT + label + " " + shown) <= prose_columns():
        return [f"{_INDENT}{label} {shown}"]
    return wrapped(shown, indent=_INDENT + " " * (len(label) + 1), first=f"{_INDENT}{label} ")


def _summary(report: LintReport) -> list[str]:
    findings = sum(finding.severity is Severity.FINDING for finding in report.findings)
    notes = len(report.findings) - findings
    read = sum(file.programs > 0 for file in report.files)
    ignored = sum(file.ignored for file in report.files)
    counts = f"{_many(findings, 'finding')}, {_many(notes, 'note')} in {_many(read, 'file')}"
    if ignored:
        counts += f"; {ignored} ignored by comments"
    unread = len(report.files) - read
    if unread:
        counts += f"; {_many(unread, 'file')} without Python to read"
    lines = wrapped(f"{counts}.", indent=_INDENT)
    fixable = sum(bool(finding.edits) for finding in report.findings)
    if fixable:
        lines += wrapped(
            f"{_many(fixable, 'of these', plural='of these')} can be fixed: gpudiag lint --fix",
            indent=_INDENT,
        )
    codes = sorted({finding.code for finding in report.findings if finding.severity is Severity.FINDING})
    if codes:
        lines += wrapped(
            f"Next: gpudiag explain {codes[0]} | in a script: # gpudiag: ignore[{codes[0]}]", indent=_INDENT
        )
    return lines


def _many(count: int, word: str, plural: str | None = None) -> str:
    return f"{count} {word if count == 1 else plural or word + 's'}"
