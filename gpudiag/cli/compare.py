"""`gpudiag compare`: two receipts, reports or snapshots: what differs, what matters, whose it is."""

from pathlib import Path

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.printing import EXIT_STATUSES, print_noun
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.errors import ExitStatus

_EXAMPLES = """\b
Examples:
  gpudiag compare delivered.json today.json        one machine, then and now
  gpudiag compare good-node.json slow-node.html    two machines of a kind
  gpudiag list --json --output now.json; gpudiag compare before.json now.json
Exit status: 0 nothing that matters differs, or WARN; 1 FAIL: fewer GPUs, another
model, a new fault, a receipt that was changed; 2 usage."""


@click.command("compare", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("before", type=click.Path(readable=False, path_type=Path), metavar="A")
@click.argument("now", type=click.Path(readable=False, path_type=Path), metavar="B")
@result_options(verbose="Show every difference, and each text whole.")
def compare(before: Path, now: Path, wanted: Wanted) -> ExitStatus:
    """Compare two receipts, reports or snapshots: what differs in B, what matters, and which part it is.

    A and B are documents of `preflight --receipt` (or its page), `preflight --json` or `list --json`, of one
    machine at two times or of two machines. What one of them does not hold is not compared. Speeds fall below
    95 % of A's before that matters; where all GPUs fell alike, the driver, container, host or variable that
    differs too is named.
    """
    from gpudiag.render.comparison_text import render_comparison
    from gpudiag.runs.compare import compare_files

    found = compare_files(before, now)
    return print_noun(found, wanted, render_comparison, EXIT_STATUSES[found.outcome])
