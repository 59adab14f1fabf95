"""What a preflight prints and writes, alone and under a launcher."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpudiag.cli.launch_status import share_report
from gpudiag.cli.printing import status_with_file, warn, warn_unremembered
from gpudiag.cli.run_events import EventFile
from gpudiag.errors import ExitStatus, GpudiagError
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
    from gpudiag.runs.machine_run import Surroundings
    from gpudiag.runs.machines import MachinesLaunch


def _render(wanted: Wanted, report: Report, plan: PreflightPlan) -> str:
    """The report of one machine as wanted, or `reason`: why the plan's gate decides as it does."""
    if wanted.form == "reason":
        from gpudiag.render.reason import render_reason

        return render_reason(report, plan)
    if wanted.form != "text":
        return render_report(wanted.form, report)
    from gpudiag.render.report_text import render_report_text

    return render_report_text(report, wanted.style())


def _write_reports(report: Report, reports: tuple[tuple[str, Path], ...]) -> bool:
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


@dataclass(frozen=True, slots=True)
class Preflights:
    """A preflight of this machine, alone or as one of a launch, with all that its command line asks for."""

    plan: PreflightPlan
    surroundings: Surroundings
    started: StartedProbes | None
    wanted: Wanted
    reports: tuple[tuple[str, Path], ...]
    events: Path | None
    quorum: int | None
    receipt: Path | None = None
    key: Path | None = None  # that signs the receipt

    def look(self, launch: MachinesLaunch | None) -> ExitStatus:
        """The exit status, after the look and the report: printed, or handed in to rank 0 of the launch."""
        plan, wanted = self.plan, self.wanted
        announce = _announcer(plan, is_reporter=launch is None or launch.is_reporter)
        with (
            EventFile(self.events) as events,
            Preflight(
                plan, replace(self.surroundings, announce=announce, warn=warn, listener=events.write)
            ) as run,
        ):
            report = run.run(self.started)
            own = exit_status(report, plan)
            strict = describe_strict(report, plan, own)
            if strict:
                warn(strict)
            kept = _write_reports(report, self.reports)
            own = status_with_file(own, kept=self._keep_receipt(report) and kept)
            # The verdict is printed, whatever happens to the history.
            status = share_report(
                launch, report, own, lambda: _render(wanted, report, plan), wanted, quorum=self.quorum
            )
            warning = run.remember()
        warn_unremembered(warning)
        return status

    def _keep_receipt(self, report: Report) -> bool:
        """Whether the receipt that is asked for could be written; a failure is reported."""
        if self.receipt is None:
            return True
        from gpudiag.runs.receipt import make_receipt, write_receipt

        try:
            write_receipt(self.receipt, make_receipt(report, self.plan), self.key)
        except GpudiagError as error:
            warn(f"no receipt: {error.message}")
            return False
        return True


def _announcer(plan: PreflightPlan, *, is_reporter: bool) -> Callable[[str], None]:
    """A function that announces each step and its cost: on a terminal, or where steps take minutes."""
    loud = is_reporter and (sys.stderr.isatty() or plan.level in LEVELS[2:])
    return warn if loud else lambda _: None
