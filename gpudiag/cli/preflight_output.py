"""What a preflight prints and writes, alone and under a launcher."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpudiag.cli.launch_status import await_status, share_report
from gpudiag.cli.printing import warn, warn_unremembered
from gpudiag.cli.run_events import EventFile
from gpudiag.errors import ExitStatus, GpudiagError, UsageError
from gpudiag.model.plan import LEVELS
from gpudiag.render.report_formats import render_report
from gpudiag.runs.gate import describe_strict, exit_status
from gpudiag.runs.preflight import Preflight

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpudiag.cli.result_options import Wanted
    from gpudiag.model.plan import PreflightPlan
    from gpudiag.model.report import Report
    from gpudiag.probe.start import StartedProbes
    from gpudiag.ranks.environment import RankEnvironment
    from gpudiag.runs.machines import MachinesLaunch
    from gpudiag.runs.preflight import Surroundings


def render_one(wanted: Wanted, report: Report, plan: PreflightPlan) -> str:
    """The report of one machine as wanted, or `reason`: why the plan's gate decides as it does."""
    if wanted.form == "reason":
        from gpudiag.render.reason import render_reason

        return render_reason(report, plan)
    if wanted.form != "text":
        return render_report(wanted.form, report)
    from gpudiag.render.report_text import render_report_text

    return render_report_text(report, wanted.style())


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


def prove_receipt(path: Path | None, key: Path | None) -> None:
    """Raise UsageError unless a receipt can be written there, and signed with that key."""
    if path is None:
        if key is not None:
            raise UsageError("--sign signs a receipt, and none is asked for", hint="add --receipt FILE")
        return
    from gpudiag.runs.receipt import require_receipt

    require_receipt(path, key)


def keep_receipt(report: Report, plan: PreflightPlan, path: Path | None, key: Path | None) -> bool:
    """Whether the receipt that is asked for could be written; a failure is reported."""
    if path is None:
        return True
    from gpudiag.runs.receipt import make_receipt, write_receipt

    try:
        write_receipt(path, make_receipt(report, plan), key)
    except GpudiagError as error:
        warn(f"no receipt: {error.message}")
        return False
    return True


def warn_strict(report: Report, plan: PreflightPlan, status: ExitStatus) -> None:
    """Print on standard error which gap or warning `--strict` alone exits for; nothing where it changes nothing."""
    words = describe_strict(report, plan, status)
    if words:
        warn(words)


def announcer(plan: PreflightPlan) -> Callable[[str], None]:
    """A function that announces each step and its cost: on a terminal, or where steps take minutes."""
    loud = sys.stderr.isatty() or plan.level in LEVELS[2:]
    return warn if loud else lambda _: None


def preflight_together(
    environment: RankEnvironment,
    wanted: Wanted,
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
    from gpudiag.runs.machines import PREFLIGHT_LOOKS, MachinesLaunch  # a machine alone does not need it

    _refuse_formats_of_one_machine(wanted.form, environment)
    if options["quorum"] is not None and environment.on_one_machine:
        raise UsageError("--quorum is for several machines, and all processes of this launch are on one")
    with MachinesLaunch(environment, PREFLIGHT_LOOKS[plan.level]) as launch:
        if not launch.looks:
            return await_status(launch)
        return _look(launch, wanted, plan, surroundings, started, options)


def _look(
    launch: MachinesLaunch,
    wanted: Wanted,
    plan: PreflightPlan,
    surroundings: Surroundings,
    started: StartedProbes | None,
    options: dict[str, Any],
) -> ExitStatus:
    with (
        EventFile(options["events"]) as events,
        Preflight(
            plan, surroundings, announcer(plan) if launch.is_reporter else _hush, warn, events.write
        ) as run,
    ):
        report = run.run(started)
        own = exit_status(report, plan)
        warn_strict(report, plan, own)
        written = write_reports(report, options["reports"])
        written = keep_receipt(report, plan, options["receipt"], options["sign"]) and written
        own = own if written or own is ExitStatus.FAIL else ExitStatus.ERROR
        status = share_report(
            launch,
            report,
            own,
            lambda: render_one(wanted, report, plan),
            wanted,
            quorum=options["quorum"],
        )
        warning = run.remember()
    warn_unremembered(warning)
    return status


def _refuse_formats_of_one_machine(form: str, environment: RankEnvironment) -> None:
    """Raise where there are several machines and the format is for one only."""
    if not environment.on_one_machine and form not in ("text", "json"):
        raise UsageError(
            f"{form} covers one machine, and this launch spans several",
            hint="--json, or --report FORMAT=FILE, which each machine writes for itself",
        )


def _hush(_: str) -> None:
    """Announce nothing: rank 0 announces each test for all machines."""
