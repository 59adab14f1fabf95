"""`gpudiag hang`: why a running job stands still."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import WholeRange
from gpudiag.cli.plan_options import plan_from, plan_options
from gpudiag.cli.printing import EXIT_STATUSES, print_noun, warn
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.cli.run_events import EventFile, events_option
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.model.hang_plan import HangPlan

if TYPE_CHECKING:
    from gpudiag.model.job import HangReport
    from gpudiag.ranks.environment import RankEnvironment

_EXAMPLES = """\b
Examples:
  gpudiag hang              the job on this machine
  gpudiag hang 4711         that of torchrun, or of any of its processes
  gpudiag hang --watch 60   where it is unknown: all wait for their GPUs
  gpudiag hang --slurm-job 42
  sudo gpudiag hang --all   of all users
  srun --overlap --jobid 42 --ntasks-per-node 1 gpudiag hang --slurm-job 42"""


@click.command("hang", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("pid", type=WholeRange(min=1), required=False)
@plan_options(HangPlan)
@click.option(
    "--native", is_flag=True, help="Show C functions too; pystack stops a blamed rank for about a second."
)
@result_options(verbose="Show every place, frame and finding.")
@events_option
def hang(pid: int | None, native: bool, wanted: Wanted, **options: Any) -> ExitStatus:
    """Why a running job stands still: which rank, which line, what it waits for.

    Looks at the job's ranks from outside, twice or more within five seconds: the job needs nothing of
    gpudiag, and nothing in it is changed. A rank that may wait for its GPU is stopped for a moment, where
    only its C functions show it. Exit status 1: it hangs; 0: it does not, or not yet; 3: unknown, with the
    reason. Under srun or mpirun, with one process on each machine, it is one look at the whole job.
    """
    from gpudiag.checks.job.hang_limits import HangLimits
    from gpudiag.runs.hang import read_hang_launch, run_hang

    plan = plan_from(HangPlan, options)
    if pid is not None and (plan.job_of is not None or plan.slurm_job is not None or plan.every):
        raise UsageError("PID, --slurm-job and --all exclude each other", hint="see `gpudiag hang --help`")
    environment = read_hang_launch(os.environ)
    if environment is None:
        with EventFile(options["events"]) as events:
            report = run_hang(
                pid,
                plan.slurm_job,
                every=plan.every,
                limits=HangLimits(work=plan.limit),
                job_of=plan.job_of,
                native=native,
                watch_seconds=plan.watch,
                deadline_seconds=plan.deadline_seconds,
            )
            _write_events(report, events)
        return print_hang(report, wanted)
    if pid is not None or plan.job_of is not None:
        raise UsageError(
            "a PID is of one machine, and a launcher started this on several",
            hint="name the job: `--slurm-job ID`; or nothing, where it is the only one",
        )
    return _hang_together(environment, plan, native=native, wanted=wanted)


def _write_events(report: HangReport, events: EventFile) -> None:
    """Write an event for each finding, and the outcome."""
    from gpudiag.model.run import EventKind, RunEvent

    for finding in (finding for verdict in report.jobs for finding in verdict.findings):
        events.write(RunEvent(EventKind.FINDING, report.seconds, 0, 1, finding=finding))
    events.write(RunEvent(EventKind.OUTCOME, report.seconds, 1, 1, outcome=report.outcome.value))


def print_hang(report: HangReport, wanted: Wanted) -> ExitStatus:
    """The exit status of the report, after it was printed, and written where it was asked for."""
    from gpudiag.render.hang_text import render_hang

    return print_noun(report, wanted, render_hang, EXIT_STATUSES[report.outcome])


def _hang_together(
    environment: RankEnvironment, plan: HangPlan, *, native: bool, wanted: Wanted
) -> ExitStatus:
    """The exit status that all processes share: one per machine looks, and rank 0 joins and prints."""
    from gpudiag.checks.job.hang_limits import HangLimits
    from gpudiag.cli.launch import announce_place
    from gpudiag.cli.launch_status import on_each_machine
    from gpudiag.model.codec import to_document
    from gpudiag.runs.hang import look_here
    from gpudiag.runs.hang_merge import join_hang_sources
    from gpudiag.runs.machines import HANG_LOOK, MachinesLaunch

    limits = HangLimits(work=plan.limit)
    announce_place(environment)

    def look(launch: MachinesLaunch) -> ExitStatus:
        report = look_here(
            plan.slurm_job,
            every=plan.every,
            limits=limits,
            native=native,
            watch_seconds=plan.watch,
            deadline_seconds=plan.deadline_seconds,
        )
        own = EXIT_STATUSES[report.outcome]
        if launch.is_reporter:
            collected = launch.collect(to_document(report), own)
            joined = join_hang_sources(collected.sources, limits, is_whole=collected.is_whole)
            status = print_hang(joined, wanted)
            launch.announce(status)
            return status
        shared = launch.hand_in(report, own)
        if shared is not None:
            return shared
        status = print_hang(report, wanted)
        warn("rank 0 received no report, so this report covers this machine alone")
        return status if status is ExitStatus.FAIL else ExitStatus.ERROR

    return on_each_machine(environment, HANG_LOOK, look)
