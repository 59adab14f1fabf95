"""`gpudiag merge`: many machines' reports as one."""

import os

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.printing import EXIT_STATUSES, print_noun
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.errors import ExitStatus, UsageError

_EXAMPLES = """\b
Examples:
  srun -N 64 --ntasks-per-node 1 --output reports/%N.json \\
    gpudiag preflight --json
  gpudiag merge reports/*.json
A file may hold several reports, one per line. A report that is missing, empty
or cut short makes the verdict ERROR (exit status 3), unless a machine FAILs;
where no file is there at all, the exit status is 2.
A report that is given twice counts once."""


@click.command("merge", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("reports", nargs=-1, required=True, metavar="REPORT.json ...")
@result_options(verbose="Name every machine.")
def merge(reports: tuple[str, ...], wanted: Wanted) -> ExitStatus:
    """Many machines' reports as one: the worst verdict, and each finding once with its machines.

    The reports are the documents of `gpudiag preflight`, `nccl-test` and `train` with `--json`, and those
    that a run over several machines leaves on each of them. Documents of `gpudiag hang --json` from the
    machines of one job become one look at the whole job.
    """
    from gpudiag.render.merged_text import render_merged
    from gpudiag.runs.hang_merge import join_hang_sources, read_hang_sources
    from gpudiag.runs.merge import merge_reports

    if not any(map(os.path.exists, reports)):  # a mistyped name, and no machine that did not report
        raise UsageError(
            f"cannot read {reports[0]}: no such file", hint="give the reports: gpudiag merge reports/*.json"
        )
    hangs = read_hang_sources(reports)
    if hangs is not None:
        from gpudiag.cli.hang import print_hang

        return print_hang(join_hang_sources(hangs), wanted)
    merged = merge_reports(reports)
    return print_noun(merged, wanted, render_merged, EXIT_STATUSES[merged.verdict])
