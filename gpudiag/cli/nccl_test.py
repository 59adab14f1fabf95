"""`gpudiag nccl-test`: verify and time collectives over ranks."""

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.launch import emit_job, emit_options, launch_options, read_place, report_ranks
from gpudiag.cli.options import store_option
from gpudiag.cli.plan_options import plan_from, plan_options
from gpudiag.cli.printing import warn_unremembered
from gpudiag.cli.result_options import STANDARD_OUTPUT, Wanted, result_options
from gpudiag.cli.run_events import EventFile, ProgressLine, events_option, join_listeners
from gpudiag.cli.signals import TerminatedError
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.model.plan import NcclTestPlan
from gpudiag.model.report import CollectiveReport
from gpudiag.model.run import RunEvent

if TYPE_CHECKING:
    from gpudiag.render.style import Style


@click.command("nccl-test", context_settings=HELP_SETTINGS)
@plan_options(NcclTestPlan)
@click.option(
    "--python",
    type=click.Path(readable=False),
    metavar="PATH",
    help="Run the torch of your job's interpreter.",
)
@click.option(
    "--labels",
    type=click.Path(readable=False),
    metavar="FILE",
    help=(
        "Racks, leaves and rails, for --localise: topology.conf, `kubectl get nodes -o"
        " json`, or lines `HOST leaf=NAME`."
    ),
)
@emit_options()
@launch_options()
@store_option
@click.option("--all-sizes", is_flag=True, help="Print every size, not about six.")
@result_options(verbose="Every size, and every finding whole.")
@events_option
def nccl_test(wanted: Wanted, **options: Any) -> ExitStatus:
    """Verify and time collectives over ranks: GPUs with NCCL, or the CPU with gloo.

    Every timed buffer is compared bit for bit with what it must hold. A rank that dies, hangs or
    holds wrong data is named. Under a launcher each process runs one rank, and one prints the report.
    """
    from gpudiag.runs.nccl_test import run_nccl_test

    plan = plan_from(NcclTestPlan, options)
    if options["all_sizes"] and wanted.form != "text":
        raise UsageError("--all-sizes changes text, and the document has every size", hint="leave one out")
    if options["labels"] is not None and not plan.localise:
        raise UsageError("--labels is for --localise", hint="add --localise, or leave out --labels")
    if emit_job(options, per_machine=False):
        return ExitStatus.PASS
    place = read_place(options)
    with EventFile(options["events"]) as events, ProgressLine(sys.stderr) as progress:
        so_far: list[RunEvent] = []
        listener = join_listeners(events.write, progress.show, so_far.append)
        try:
            outcome = run_nccl_test(
                plan,
                place,
                listener,
                python=options["python"],
                store=options["store"],
                notice=progress.warn,
                labels=options["labels"],
            )
        except (
            KeyboardInterrupt,
            SystemExit,
            TerminatedError,
        ):  # the second: of agents that end their ranks first
            if not any(event.planned for event in so_far):
                raise
            as_table = wanted.form == "text" and options["events"] != STANDARD_OUTPUT
            progress.warn(
                _measured_before_the_end(so_far, wanted, all_sizes=options["all_sizes"], as_table=as_table)
            )
            raise
    render = partial(_render, all_sizes=options["all_sizes"])
    status = report_ranks(outcome, place, wanted, render)
    warn_unremembered(outcome.record())
    return status


def _measured_before_the_end(
    events: list[RunEvent], wanted: Wanted, *, all_sizes: bool, as_table: bool
) -> str:
    """What was measured until the run was ended from outside; the sizes go to standard output `as_table`."""
    results = [event.result for event in events if event.result is not None]
    planned = max((event.planned for event in events), default=0)
    count = (
        f"{len(results)} of {planned} planned results were measured before the end, and nothing was judged"
    )
    if not results or not as_table:
        return count
    from gpudiag.render.collective_text import render_results

    print(
        "\n".join(render_results(results, all_sizes=all_sizes or wanted.verbose, style=wanted.style())),
        flush=True,
    )
    return count


def _render(report: CollectiveReport, style: "Style", *, all_sizes: bool) -> str:
    from gpudiag.render.collective_text import render_collective

    return render_collective(report, all_sizes=all_sizes, style=style)
