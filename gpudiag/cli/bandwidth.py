"""`gpudiag bandwidth`: how fast GPUs copy and multiply, with every copy verified."""

import os
import sys
from typing import Any

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import json_option, output_option
from gpudiag.cli.plan_options import plan_from, plan_options
from gpudiag.cli.printing import print_result, status_with_file, warn_unremembered
from gpudiag.cli.run_events import EventFile, ProgressLine, events_option, join_listeners
from gpudiag.errors import ExitStatus
from gpudiag.model.bandwidth_plan import BandwidthPlan
from gpudiag.model.preflight_plan import PreflightPlan
from gpudiag.model.report import Report


@click.command("bandwidth", context_settings=HELP_SETTINGS)
@plan_options(BandwidthPlan)
@click.option("--python", type=click.Path(), metavar="PATH", help="Your job's interpreter: its torch is run.")
@click.option("--store", metavar="URL", help="Where earlier results are: a file, sqlite:// or postgresql://.")
@json_option
@output_option
@events_option
def bandwidth(**options: Any) -> ExitStatus:
    """Time copies and matrix products on every free GPU, or on the CPU where there is none.

    Copies within a GPU's memory, to and from the host, and from GPU to GPU; each is compared with its
    source. Speeds are held against the device's own limits, its peers, and earlier runs.
    """
    from gpudiag.ranks.environment import refuse_bare_launcher
    from gpudiag.runs.bandwidth import BandwidthRun
    from gpudiag.runs.gate import exit_status
    from gpudiag.runs.interpreters import require_torch
    from gpudiag.store.history import default_store

    refuse_bare_launcher(os.environ)
    plan = plan_from(BandwidthPlan, options)
    require_torch("bandwidth", options["python"])
    if options["store"] is not None:
        from gpudiag.store.database import parse_store_url

        parse_store_url(options["store"])
    store = options["store"] or default_store()
    progress = ProgressLine(sys.stderr)
    with (
        EventFile(options["events"]) as events,
        BandwidthRun(
            plan,
            store,
            progress.say,
            progress.warn,
            join_listeners(events.write, progress.show),
            python=options["python"],
        ) as run,
    ):
        with progress:
            report = run.run()
        kept = _print(report, options)  # the verdict is printed, whatever happens to the history
        warning = run.remember()
    warn_unremembered(warning)
    return status_with_file(exit_status(report, PreflightPlan()), kept=kept)


def _print(report: Report, options: dict[str, Any]) -> bool:
    """Whether `--output`, if given, was written, after printing the report as text or as its document."""
    from gpudiag.render.json import render_json

    def document() -> str:
        return render_json(report)

    return print_result(
        document if options["as_json"] else lambda: _text(report), document, options["output"]
    )


def _text(report: Report) -> str:
    from gpudiag.render.bandwidth_text import render_bandwidth
    from gpudiag.render.style import Style, wants_colour

    return render_bandwidth(report, Style(wants_colour(sys.stdout.isatty(), dict(os.environ))))
