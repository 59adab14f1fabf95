"""What a preflight prints and writes, alone and under a launcher."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from gpudiag.cli.printing import warn_unremembered
from gpudiag.cli.run_events import EventFile
from gpudiag.errors import ExitStatus, GpudiagError, UsageError
from gpudiag.model.preflight_plan import LEVELS
from gpudiag.render.report_formats import render_report
from gpudiag.runs.gate import exit_status
from gpudiag.runs.preflight import Preflight
from gpudiag.runs.preflight_launch import PreflightLaunch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpudiag.model.preflight_plan import PreflightPlan
    from gpudiag.model.report import MergedReport, Report
    from gpudiag.probe.start import StartedProbes
    from gpudiag.ranks.environment import RankEnvironment
    from gpudiag.runs.preflight import Surroundings


def render_one(form: str, report: Report, plan: PreflightPlan) -> str:
    """The report of one machine in that format, or `reason`: why the plan's gate decides as it does."""
    if form == "reason":
        from gpudiag.render.reason import render_reason

        return render_reason(report, plan)
    if form != "text":
        return render_report(form, report)
    from gpudiag.render.report_text import render_report_text
    from gpudiag.render.style import Style, wants_colour

    return render_report_text(report, Style(wants_colour(sys.stdout.isatty(), dict(os.environ))))


def write_reports(report: Report, reports: tuple[tuple[str, Path], ...]) -> bool:
    """Whether every report could be written; a failure is reported and the others are tried."""
    from gpudiag.runs.output import write_document

    written = True
    for form, path in reports:
        try:
            write_document(path, render_report(form, report))
        except GpudiagError as error:
            warn(error.message)
            written = False
    return written


def sayer(plan: PreflightPlan) -> Callable[[str], None]:
    """A function that announces each step and its cost: on a terminal, or where steps take minutes."""
    loud = sys.stderr.isatty() or plan.level in LEVELS[2:]
    return warn if loud else lambda _: None


def warn(sentence: str) -> None:
    """Print the sentence on standard error."""
    print(f"gpudiag: {sentence}", file=sys.stderr)


def render_several(form: str, merged: MergedReport) -> str:
    """The report of several machines, as text or as its document."""
    from gpudiag.model.codec import dumps
    from gpudiag.render.merged_text import render_merged
    from gpudiag.render.style import Style, wants_colour

    if form == "json":
        return dumps(merged) + "\n"
    return render_merged(merged, Style(wants_colour(sys.stdout.isatty(), dict(os.environ))))


def preflight_together(
    environment: RankEnvironment,
    form: str,
    plan: PreflightPlan,
    surroundings: Surroundings,
    started: StartedProbes | None,
    options: dict[str, Any],
) -> ExitStatus:
    """The exit status that all processes share: one per machine looks, and rank 0 prints.

    Raises:
        UsageError: the wanted format is for one machine only.
        LaunchError: there is no place for the processes to meet.
    """
    _refuse_formats_of_one_machine(form, environment)
    with PreflightLaunch(environment, plan.level) as launch:
        if not launch.looks:
            return _follow(launch)
        return _look(launch, form, plan, surroundings, started, options)


def _follow(launch: PreflightLaunch) -> ExitStatus:
    status = launch.await_verdict()
    if status is None:
        warn("rank 0 gave no verdict, and this rank did not look at the machine itself")
    return ExitStatus.ERROR if status is None else status


def _look(
    launch: PreflightLaunch,
    form: str,
    plan: PreflightPlan,
    surroundings: Surroundings,
    started: StartedProbes | None,
    options: dict[str, Any],
) -> ExitStatus:
    with (
        EventFile(options["events"]) as events,
        Preflight(plan, surroundings, sayer(plan) if launch.tells else _hush, warn, events.write) as run,
    ):
        report = run.run(started)
        own = exit_status(report, plan)
        written = write_reports(report, options["reports"])
        own = own if written or own is ExitStatus.FAIL else ExitStatus.ERROR
        told = (launch, form, report, plan, own)
        status = _print_all(*told) if launch.tells else _hand_in(*told)
        warning = run.remember()
    warn_unremembered(warning)
    return status


def _print_all(
    launch: PreflightLaunch, form: str, report: Report, plan: PreflightPlan, own: ExitStatus
) -> ExitStatus:
    """The exit status of all processes, after printing this machine's report or the merged one."""
    if launch.on_one_machine:
        sys.stdout.write(render_one(form, report, plan))
        status = own
    else:
        gathered = launch.gather(report, own)
        sys.stdout.write(render_several(form, gathered.merged))
        status = gathered.status
    sys.stdout.flush()
    launch.announce(status)
    return status


def _hand_in(
    launch: PreflightLaunch, form: str, report: Report, plan: PreflightPlan, own: ExitStatus
) -> ExitStatus:
    """The exit status, after sending the report to rank 0, or printing it where rank 0 accepts none."""
    status = launch.hand_in(report, own)
    if status is not None:
        return status
    sys.stdout.write(render_one(form, report, plan))
    sys.stdout.flush()
    warn("rank 0 took no report, so this one is of this machine alone")
    return own if own is ExitStatus.FAIL else ExitStatus.ERROR


def _refuse_formats_of_one_machine(form: str, environment: RankEnvironment) -> None:
    """Raise where there are several machines and the format is for one only."""
    if not environment.on_one_machine and form not in ("text", "json"):
        raise UsageError(
            f"{form} is of one machine, and this launch spans several",
            hint="--json, or --report FORMAT=FILE, which each machine writes for itself",
        )


def _hush(_: str) -> None:
    """Announce nothing: rank 0 announces each test for all machines."""
