"""`gpudiag lint`: mistakes in training scripts, found before they run."""

import sys
from pathlib import Path

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.printing import print_result, status_with_file
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.model.lint import LintReport

# SARIF 2.1.0, and annotations for GitHub.
_FORMATS = ("text", "json", "sarif", "github")
_EXAMPLES = """\b
Examples:
  gpudiag lint train.py
  gpudiag lint scripts/ notebook.ipynb docs/tutorial.md
  gpudiag lint --diff train.py          what --fix would change
  gpudiag lint --format sarif src/ > lint.sarif
Exit status: 0 nothing but notes, 1 a finding, 2 a file that is not there or
another wrong argument, 3 a file that could not be read.
Silence: `# gpudiag: ignore[lint.CODE]` on a line, or before the first
statement for the whole file."""


@click.command("lint", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE | FOLDER ...")
@click.option("--diff", is_flag=True, help="Show the certain fixes as a diff; change nothing.")
@click.option("--fix", is_flag=True, help="Show that diff, then write it; report the rest.")
@result_options(_FORMATS, verbose="")
def lint(files: tuple[str, ...], diff: bool, fix: bool, wanted: Wanted) -> ExitStatus:
    """The mistakes of distributed training in scripts, notebooks and pages, with the corrected line.

    The files are read and never run. A mistake is reported only if the script shows it for certain; a note may be
    intended, and does not change the exit status.
    """
    from gpudiag.lint.linter import lint_files

    if fix and diff:
        raise UsageError("--fix shows the diff too, so --diff adds nothing", hint="leave --diff out")
    paths = [Path(name) for name in files]
    missing = [name for name, path in zip(files, paths, strict=True) if not path.exists()]
    report = lint_files([path for path in paths if path.exists()])
    if fix or diff:
        report = _mend(report, paths, write=fix, aside=wanted.form != "text")
    kept = print_result(
        lambda: _rendered(report, wanted), lambda: _rendered(report, Wanted("json")), wanted.output
    )
    for name in missing:
        print(f"gpudiag: cannot read {name}: no such file", file=sys.stderr)
    return status_with_file(_status(report, bool(missing)), kept=kept)


def _status(report: LintReport, missing: bool) -> ExitStatus:
    if missing:
        return ExitStatus.USAGE
    if report.failed:
        return ExitStatus.FAIL
    unread = any((file.remark or "").startswith("not read") for file in report.files)
    return ExitStatus.ERROR if unread else ExitStatus.PASS


def _mend(report: LintReport, paths: list[Path], *, write: bool, aside: bool) -> LintReport:
    """Show the certain mends as a diff, and write them if asked to; what is left is linted anew."""
    from gpudiag.lint.fix import plan_fixes, write_fixes
    from gpudiag.lint.linter import lint_files
    from gpudiag.render.style import safe_lines

    fixed = plan_fixes(report)
    stream = sys.stderr if aside else sys.stdout
    for file in fixed:
        print(safe_lines(file.diff), end="", file=stream)
    count = sum(file.mended for file in fixed)
    words = "1 mistake" if count == 1 else f"{count} mistakes"
    if not fixed:
        print("gpudiag: no certain fix for these findings", file=sys.stderr)
    elif not write:
        print(f"gpudiag: --fix would fix {words} like this", file=sys.stderr)
    else:
        stream.flush()
        write_fixes(fixed)
        print(f"gpudiag: fixed {words}", file=sys.stderr)
        return lint_files([path for path in paths if path.exists()])
    return report


def _rendered(report: LintReport, wanted: Wanted) -> str:
    if wanted.form == "json":
        from gpudiag.model.codec import dumps

        return dumps(report) + "\n"
    if wanted.form == "sarif":
        from gpudiag.lint.rules import RULES
        from gpudiag.render.lint_formats import render_sarif

        return render_sarif(report, [(rule.code, rule.severity, rule.title, rule.why) for rule in RULES])
    if wanted.form == "github":
        from gpudiag.render.lint_formats import render_annotations

        return render_annotations(report)
    from gpudiag.render.lint_text import render_lint

    return render_lint(report, wanted.style())
