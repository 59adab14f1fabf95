"""`gpudiag lint`: mistakes in training scripts, found before they run."""

import errno
import os
import sys
from pathlib import Path

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.printing import print_result, status_with_file, warn
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.model.lint import LintReport

# SARIF 2.1.0, and annotations for GitHub.
_FORMATS = ("text", "json", "sarif", "github")
_HINT = "give scripts, notebooks, pages, or folders of these: gpudiag lint train.py"
_EXAMPLES = """\b
Examples:
  gpudiag lint train.py
  gpudiag lint scripts/ notebook.ipynb docs/tutorial.md
  gpudiag lint --diff train.py          what --fix would change
  gpudiag lint --format sarif src/ > lint.sarif
Exit status: 0 nothing but notes, 1 a finding, 2 a file that is not there, a
folder without a script or another wrong argument, 3 a file that could not be
read.
Silence: `# gpudiag: ignore[lint.CODE]` on a line, or before the first
statement for the whole file."""


@click.command("lint", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE | FOLDER ...")
@click.option("--diff", is_flag=True, help="Show the certain fixes as a diff; change nothing.")
@click.option("--fix", is_flag=True, help="Show that diff, then write it; report the rest.")
@result_options(_FORMATS, verbose="")
def lint(files: tuple[str, ...], diff: bool, fix: bool, wanted: Wanted) -> ExitStatus:
    """The mistakes of distributed training in scripts, notebooks and pages, with the corrected line.

    The files are read and never run. A mistake is reported only if the script shows it for certain; a note
    may be intended, and does not change the exit status.
    """
    from gpudiag.lint.linter import lint_files

    if fix and diff:
        raise UsageError("--fix shows the diff too, so --diff adds nothing", hint="leave --diff out")
    missing = {name: why for name in files if (why := _why_missing(name))}
    paths = [Path(name) for name in files if name not in missing]
    if not paths:
        raise UsageError("; ".join(f"cannot read {name}: {why}" for name, why in missing.items()), hint=_HINT)
    report = lint_files(paths)
    if fix or diff:
        report = _fix(report, paths, write=fix, aside=wanted.form != "text")
    kept = print_result(
        lambda: _rendered(report, wanted), lambda: _rendered(report, Wanted("json")), wanted.output
    )
    for name, why in missing.items():
        warn(f"cannot read {name}: {why}")
    if paths and not report.files:
        warn(f"no script in {', '.join(map(str, paths))}: nothing was read")
    return status_with_file(_status(report, bool(missing)), kept=kept)


def _why_missing(name: str) -> str:
    """Why nothing has this name; empty where something has it, or where only opening it can show that."""
    try:
        os.stat(name)
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return "" if error.errno == errno.EACCES else str(error.strerror)
    return ""


def _status(report: LintReport, missing: bool) -> ExitStatus:
    if missing or not report.files:
        return ExitStatus.USAGE
    if report.failed:
        return ExitStatus.FAIL
    return ExitStatus.PASS if all(file.is_read for file in report.files) else ExitStatus.ERROR


def _fix(report: LintReport, paths: list[Path], *, write: bool, aside: bool) -> LintReport:
    """Show the certain fixes as a diff, and write them if asked to; what is left is linted again."""
    from gpudiag.lint.fix import plan_fixes, write_fixes
    from gpudiag.lint.linter import lint_files
    from gpudiag.render.style import safe_lines

    fixed = plan_fixes(report)
    stream = sys.stderr if aside else sys.stdout
    for file in fixed:
        print(safe_lines(file.diff), end="", file=stream)
    count = sum(file.mistakes for file in fixed)
    words = "1 mistake" if count == 1 else f"{count} mistakes"
    if not fixed:
        warn(f"no certain fix: {'change these by hand' if report.findings else 'nothing was found'}")
        return report
    if not write:
        warn(f"--fix would fix {words} like this")
        return report
    stream.flush()
    write_fixes(fixed)
    warn(f"fixed {words}")
    return lint_files(paths)


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
