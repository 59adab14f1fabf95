"""`gpudiag hang`: why a running job stands still."""

import os
import sys
from pathlib import Path

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import json_option, output_option
from gpudiag.cli.printing import EXIT_STATUSES, print_result, status_with_file
from gpudiag.errors import ExitStatus, UsageError

_EXAMPLES = """\b
Examples:
  gpudiag hang              the job on this machine
  gpudiag hang 4711         that of torchrun, or of any of its processes
  gpudiag hang --slurm-job 42
  sudo gpudiag hang --all   of all users"""


@click.command("hang", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("pid", type=click.IntRange(min=1), required=False)
@click.option("--slurm-job", metavar="ID", help="The ranks of that Slurm job on this machine.")
@click.option("--all", "every", is_flag=True, help="Every job on this machine.")
@click.option(
    "--limit",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="A rank that works while others wait is blamed after it.",
)
@click.option(
    "--native", is_flag=True, help="Also C functions, by pystack; it stops a blamed rank for a second."
)
@json_option
@output_option
def hang(
    pid: int | None,
    slurm_job: str | None,
    every: bool,
    limit: float,
    native: bool,
    as_json: bool,
    output: Path | None,
) -> ExitStatus:
    """Why a running job stands still: which rank, which line, what it waits for.

    Looks at the job's ranks from outside, twice or more within five seconds: the job needs nothing of gpudiag, and
    nothing in it is stopped or changed. Exit status 1: it hangs; 0: it does not, or not yet; 3: that could not
    be told, with the reason.
    """
    from gpudiag.checks.job.verdict import HangLimits
    from gpudiag.model.codec import dumps
    from gpudiag.render.hang_text import render_hang
    from gpudiag.render.style import Style, wants_colour
    from gpudiag.runs.hang import run_hang

    if sum((pid is not None, slurm_job is not None, every)) > 1:
        raise UsageError("PID, --slurm-job and --all exclude each other", hint="see `gpudiag hang --help`")
    report = run_hang(pid, slurm_job, every=every, limits=HangLimits(work=limit), native=native)

    def document() -> str:
        return dumps(report) + "\n"

    def text() -> str:
        return render_hang(report, Style(wants_colour(sys.stdout.isatty(), dict(os.environ))))

    kept = print_result(document if as_json else text, document, output)
    return status_with_file(EXIT_STATUSES[report.outcome], kept=kept)
