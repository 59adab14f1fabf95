"""`gpudiag bandwidth`: how fast GPUs copy and multiply, with every copy verified."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.launch import emit_job, emit_options, launch_options, read_machine_place
from gpudiag.cli.launch_status import on_each_machine, share_report
from gpudiag.cli.options import store_option
from gpudiag.cli.plan_options import plan_from, plan_options
from gpudiag.cli.printing import warn_unremembered
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.cli.run_events import EventFile, ProgressLine, events_option, join_listeners
from gpudiag.errors import ExitStatus
from gpudiag.model.plan import BandwidthPlan, PreflightPlan

if TYPE_CHECKING:
    from gpudiag.runs.machines import MachinesLaunch


@click.command("bandwidth", context_settings=HELP_SETTINGS)
@plan_options(BandwidthPlan)
@click.option(
    "--python",
    type=click.Path(readable=False),
    metavar="PATH",
    help="Run the torch of your job's interpreter.",
)
@store_option
@emit_options()
@launch_options()
@result_options()
@events_option
def bandwidth(wanted: Wanted, **options: Any) -> ExitStatus:
    """Time copies and matrix products on every free GPU, or on the CPU where there is none.

    Copies within a GPU's memory, to and from the host, and from GPU to GPU; each is compared with its
    source. Speeds are held against the device's own limits, its peers, and earlier runs. Under a
    launcher one process of each machine tests it, and one prints the report on all.
    """
    from gpudiag.runs.interpreters import require_torch

    plan = plan_from(BandwidthPlan, options)
    if emit_job(options, per_machine=True):
        return ExitStatus.PASS
    require_torch("bandwidth", options["python"])
    environment = read_machine_place(options)
    test = partial(_test, plan, wanted, options)
    if environment is None:
        return test(None)
    from gpudiag.runs.machines import BANDWIDTH_LOOK

    return on_each_machine(environment, BANDWIDTH_LOOK, test)


def _test(
    plan: BandwidthPlan, wanted: Wanted, options: dict[str, Any], launch: MachinesLaunch | None
) -> ExitStatus:
    """The exit status, after this machine was tested and the report printed, or handed to rank 0."""
    from gpudiag.render.bandwidth_text import render_bandwidth
    from gpudiag.render.report_formats import render_json
    from gpudiag.runs.bandwidth import BandwidthRun
    from gpudiag.runs.gate import exit_status
    from gpudiag.runs.machine_run import Surroundings
    from gpudiag.store.state_folder import default_store

    progress = ProgressLine(sys.stderr)
    with EventFile(options["events"]) as events:
        surroundings = Surroundings(
            options["store"] or default_store(),
            options["python"],
            announce=progress.announce,
            warn=progress.warn,
            listener=join_listeners(events.write, progress.show),
        )
        with BandwidthRun(plan, surroundings) as run:
            with progress:
                report = run.run()

            def shown() -> str:
                return render_json(report) if wanted.as_json else render_bandwidth(report, wanted.style())

            status = share_report(launch, report, exit_status(report, PreflightPlan()), shown, wanted)
            warning = run.remember()  # the verdict is printed, whatever happens to the history
    warn_unremembered(warning)
    return status
