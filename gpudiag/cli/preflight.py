"""`gpudiag preflight`: may this machine train? The gate for CI and job prologs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.launch import emit_job, emit_options, launch_options, read_machine_place
from gpudiag.cli.plan_options import plan_from, plan_options
from gpudiag.cli.preflight_output import render_one, sayer, write_reports
from gpudiag.cli.printing import warn, warn_unremembered
from gpudiag.cli.run_events import EventFile, events_option
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.model.plan import PreflightPlan
from gpudiag.model.reading import NOT_ASKED
from gpudiag.render.report_formats import REPORT_FORMATS

if TYPE_CHECKING:
    from gpudiag.probe.start import StartedProbes
    from gpudiag.runs.preflight import Surroundings

_EXAMPLES = """\b
Examples:
  gpudiag preflight                               quick: some 45 s and 4 s for each GPU
  gpudiag preflight --level instant --fail-on machine --reason   for a prolog
  gpudiag preflight --report junit=r.xml --report markdown=s.md
  gpudiag preflight --only pcie,gpu.lost
  gpudiag preflight --expect good.json            a good machine's report
  gpudiag preflight --level long --duration 1800  half an hour of full load
Exit status: 0 PASS or WARN, 1 FAIL, 2 usage, 3 could not tell."""


def _reports(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[str, Path], ...]:
    """Each FORMAT=FILE as format and path; every file is proved writable before any work starts."""
    from gpudiag.model.option import require_known
    from gpudiag.runs.output import require_writable

    found: list[tuple[str, Path]] = []
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or not file:
            raise UsageError(f"--report {text} is not FORMAT=FILE", hint="such as --report junit=report.xml")
        require_known(name, REPORT_FORMATS, "a report format")
        path = Path(file)
        if path.absolute() in [other.absolute() for _, other in found]:
            raise UsageError(f"--report: two reports into {path}", hint="name another file for one of them")
        if not context.resilient_parsing:
            require_writable(path)
        found.append((name, path))
    return tuple(found)


@click.command("preflight", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@plan_options(PreflightPlan)
@click.option(
    "--expect",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A report or snapshot of a good machine.",
)
@click.option(
    "--python", type=click.Path(), metavar="PATH", help="The job's own interpreter: its torch is judged."
)
@click.option("--format", "form", metavar="FORMAT", help=f"{', '.join(REPORT_FORMATS)}.  [default: text]")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--report",
    "reports",
    multiple=True,
    callback=_reports,
    metavar="FORMAT=FILE",
    help="A report into FILE too.",
)
@click.option("--reason", is_flag=True, help="One line instead, for Slurm or Kubernetes.")
@click.option("--list", "listing", is_flag=True, help="Every check: what it reads, its limit, its level.")
@click.option("--store", metavar="URL", help="Where the history is.  [default: in the state directory]")
@click.option(
    "--quorum",
    type=click.IntRange(min=1),
    metavar="N",
    help="Under a launcher: enough machines that pass.  [default: all]",
)
@emit_options()
@launch_options()
@events_option
@click.pass_obj
def preflight(started: StartedProbes | None, /, **options: Any) -> ExitStatus:
    """May this machine train? If not: which part is to blame, who must act, and what to do.

    Never PASS without having looked. GPUs that others use are left alone, and said so.
    """
    form = _format(options)
    plan = plan_from(PreflightPlan, options)
    if emit_job(options, per_machine=True):
        return ExitStatus.PASS
    if options["listing"]:
        return _print_checks(plan, options)
    surroundings = _surroundings(options)
    environment = read_machine_place(options)
    if environment is not None:
        from gpudiag.cli.preflight_output import preflight_together

        return preflight_together(environment, form, plan, surroundings, started, options)
    if options["quorum"] is not None:
        raise UsageError(
            "--quorum is for several machines", hint="start it on each of them: srun gpudiag preflight ..."
        )
    from gpudiag.runs.gate import exit_status
    from gpudiag.runs.preflight import Preflight

    with (
        EventFile(options["events"]) as events,
        Preflight(plan, surroundings, sayer(plan), warn, events.write) as run,
    ):
        report = run.run(started)
        sys.stdout.write(render_one(form, report, plan))
        sys.stdout.flush()  # the verdict is printed, whatever happens to files and history
        status = exit_status(report, plan)
        written = write_reports(report, options["reports"])
        warning = run.remember()
    warn_unremembered(warning)
    return status if written or status is ExitStatus.FAIL else ExitStatus.ERROR


def _format(options: dict[str, Any]) -> str:
    """The format for standard output: a format's name, or `reason`.

    Raises:
        UsageError: two flags ask for different formats, or there is no such format.
    """
    from gpudiag.model.option import require_known

    form = options["form"]
    if form is not None:
        require_known(form, REPORT_FORMATS, "a report format")
    wanted = [("--format " + str(form), form)] if form is not None else []
    wanted += [("--json", "json")] * options["as_json"] + [("--reason", "reason")] * options["reason"]
    if len({what for _, what in wanted}) > 1:
        flags = " and ".join(flag for flag, _ in wanted)
        raise UsageError(f"{flags} contradict each other", hint="use --report FORMAT=FILE for the second one")
    return str(wanted[0][1]) if wanted else "text"


def _surroundings(options: dict[str, Any]) -> Surroundings:
    from gpudiag.runs.preflight import Surroundings, read_expected_machine
    from gpudiag.store.history import default_store

    if options["python"] is not None and not os.access(options["python"], os.X_OK):
        raise UsageError(
            f"--python {options['python']} cannot be run", hint="name the interpreter of your job"
        )
    if options["store"] is not None:
        from gpudiag.store.database import parse_store_url  # slow to load, and needed only for a wrong URL

        parse_store_url(options["store"])
    expected = NOT_ASKED if options["expect"] is None else read_expected_machine(options["expect"])
    return Surroundings(options["store"] or default_store(), options["python"], expected)


def _print_checks(plan: PreflightPlan, options: dict[str, Any]) -> ExitStatus:
    from gpudiag.checks import BUILTIN
    from gpudiag.render.checks_text import render_checks
    from gpudiag.render.style import Style, wants_colour
    from gpudiag.runs.preflight import choose_checks

    checks = choose_checks(plan) if plan.only or plan.skip else BUILTIN
    style = Style(wants_colour(sys.stdout.isatty(), dict(os.environ)))
    sys.stdout.write(render_checks(checks, style))
    return ExitStatus.PASS
