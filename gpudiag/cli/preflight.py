"""`gpudiag preflight`: may this machine train? The gate for CI and job prologs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.completion import offer_checks, offer_report
from gpudiag.cli.launch import emit_job, emit_options, launch_options, read_machine_place
from gpudiag.cli.launch_status import on_each_machine
from gpudiag.cli.options import WholeRange, deadline_option, refuse_given, store_option
from gpudiag.cli.plan_options import plan_from, plan_options
from gpudiag.cli.result_options import STANDARD_OUTPUT, Wanted, result_options
from gpudiag.cli.run_events import events_option
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.model.plan import PreflightPlan
from gpudiag.model.reading import NOT_ASKED
from gpudiag.render.report_formats import REPORT_FORMATS

if TYPE_CHECKING:
    from gpudiag.probe.start import StartedProbes
    from gpudiag.runs.machine_run import Surroundings

_EXAMPLES = """\b
Examples:
  gpudiag preflight                               quick: some 45 s and 4 s for each GPU
  gpudiag preflight --level instant --fail-on machine --reason   for a prolog
  gpudiag preflight --report junit=r.xml --report markdown=s.md
  gpudiag preflight --only pcie,gpu.lost
  gpudiag preflight --expect good.json            a good machine's report
  gpudiag preflight --level long --duration 1800  half an hour of full load
  gpudiag preflight --level acceptance --receipt node17 --sign site_key
Exit status: 0 PASS or WARN, 1 FAIL, 2 usage, 3 no verdict."""


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
        if path != STANDARD_OUTPUT and not context.resilient_parsing:
            require_writable(path)
        found.append((name, path))
    return tuple(found)


@click.command("preflight", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@plan_options(PreflightPlan, {"only": offer_checks, "skip": offer_checks})
@click.option(
    "--expect",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Compare with this report or snapshot of a good machine.",
)
@click.option(
    "--python",
    type=click.Path(readable=False),
    metavar="PATH",
    help="Judge the torch of your job's interpreter.",
)
@click.option(
    "--report",
    "reports",
    multiple=True,
    callback=_reports,
    shell_complete=offer_report,
    metavar="FORMAT=FILE",
    help=f"Write a report to FILE too: {', '.join(REPORT_FORMATS)}.",
)
@click.option(
    "--receipt",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Write a receipt: FILE.json, and FILE.html, the same as a page.",
)
@click.option(
    "--sign",
    type=click.Path(readable=False, path_type=Path),
    metavar="KEY",
    help="Sign the receipt with this SSH key, as ssh-keygen -Y does.",
)
@click.option("--reason", is_flag=True, help="Print one line instead, for Slurm or Kubernetes.")
@click.option(
    "--list", "listing", is_flag=True, help="List every check: what it reads, its limit, its level."
)
@store_option
@deadline_option(None, " of NVML and the host", default="5; 1.5 at level instant")
@click.option(
    "--quorum",
    type=WholeRange(min=1),
    metavar="N",
    help="Under a launcher: pass if N machines pass.  [default: all]",
)
@emit_options()
@launch_options()
@result_options(REPORT_FORMATS, verbose="Show every finding, and why each check was skipped.")
@events_option
@click.pass_obj
def preflight(started: StartedProbes | None, /, wanted: Wanted, **options: Any) -> ExitStatus:
    """May this machine train? If not: which part is to blame, who must act, and what to do.

    Never PASS without having looked. GPUs that others use are left alone, and listed as such.
    """
    wanted, reports = _destinations(wanted, options["reports"], reason=options["reason"])
    plan = plan_from(PreflightPlan, options)
    if emit_job(options, per_machine=True):
        return ExitStatus.PASS
    if options["listing"]:
        refuse_given(
            lambda name: name not in ("listing", "only", "skip"),
            "does nothing beside --list",
            hint="--only and --skip choose what is listed",
        )
        return _print_checks(plan)
    _require_receipt(options["receipt"], options["sign"])
    surroundings = _surroundings(options, started)
    environment = read_machine_place(options)
    quorum, on_one_machine = options["quorum"], environment is None or environment.on_one_machine
    if quorum is not None and on_one_machine:
        raise UsageError(
            "--quorum is for several machines", hint="start it on each of them: srun gpudiag preflight ..."
        )
    from gpudiag.cli.preflight_output import Preflights

    preflights = Preflights(
        plan,
        surroundings,
        started,
        wanted,
        reports,
        options["events"],
        quorum,
        options["receipt"],
        options["sign"],
    )
    if environment is None:
        return preflights.look(None)
    if not on_one_machine and wanted.form not in ("text", "json"):
        raise UsageError(
            f"{wanted.form} covers one machine, and this launch spans several",
            hint="--json, or --report FORMAT=FILE, which each machine writes for itself",
        )
    from gpudiag.runs.machines import PREFLIGHT_LOOKS

    return on_each_machine(environment, PREFLIGHT_LOOKS[plan.level], preflights.look)


def _require_receipt(path: Path | None, key: Path | None) -> None:
    """Raise UsageError unless a receipt can be written there, and signed with that key."""
    if path is None:
        if key is not None:
            raise UsageError("--sign signs a receipt, and none is asked for", hint="add --receipt FILE")
        return
    from gpudiag.runs.receipt import require_receipt

    require_receipt(path, key)


def _destinations(
    wanted: Wanted, reports: tuple[tuple[str, Path], ...], *, reason: bool
) -> tuple[Wanted, tuple[tuple[str, Path], ...]]:
    """What standard output gets, with `reason` among the formats, and the reports for files.

    Raises:
        UsageError: two flags ask for different things on standard output, or one would do nothing.
    """
    printed = [(f"--report {name}=-", name) for name, path in reports if path == STANDARD_OUTPUT]
    printed += [("--reason", "reason")] * reason
    printed += [(f"the format {wanted.form}", wanted.form)] * (wanted.form != "text")
    if len({what for _, what in printed}) > 1:
        flags = " and ".join(flag for flag, _ in printed)
        raise UsageError(f"{flags} contradict each other", hint="use --report FORMAT=FILE for the second one")
    form = printed[0][1] if printed else "text"
    if wanted.verbose and form != "text":
        raise UsageError(f"--verbose changes text, and {printed[0][0]} prints none", hint="leave one out")
    files = tuple((name, path) for name, path in reports if path != STANDARD_OUTPUT)
    if wanted.output is not None and wanted.output.absolute() in [path.absolute() for _, path in files]:
        raise UsageError(f"two reports into {wanted.output}", hint="name another file for one of them")
    return replace(wanted, form=form), files


def _surroundings(options: dict[str, Any], started: StartedProbes | None) -> Surroundings:
    from gpudiag.runs.machine_run import Surroundings
    from gpudiag.runs.preflight_plan import read_expected_machine
    from gpudiag.store.history_child import StartedHistory
    from gpudiag.store.state_folder import default_store

    python = options["python"]
    if python is not None:
        from gpudiag.runs.interpreters import find_interpreter

        python = find_interpreter(python, f"--python {python}")
    expected = NOT_ASKED if options["expect"] is None else read_expected_machine(options["expect"])
    history = None if started is None else started.history
    return Surroundings(
        options["store"] or default_store(),
        python,
        expected,
        options["deadline"],
        history if isinstance(history, StartedHistory) else None,
    )


def _print_checks(plan: PreflightPlan) -> ExitStatus:
    from gpudiag.checks import BUILTIN
    from gpudiag.render.checks_text import render_checks
    from gpudiag.render.style import Style, wants_colour
    from gpudiag.runs.preflight_plan import choose_checks

    checks = choose_checks(plan) if plan.only or plan.skip else BUILTIN
    style = Style(wants_colour(sys.stdout.isatty(), dict(os.environ)))
    sys.stdout.write(render_checks(checks, style))
    return ExitStatus.PASS
