"""`gpudiag list`: what GPUs are here, who uses them, which are free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.completion import offer_fields, offer_list
from gpudiag.cli.listing import CsvQuery, ListOptions, list_machine
from gpudiag.cli.options import SecondsRange, WholeRange, deadline_option, parse_names
from gpudiag.cli.result_options import PLAIN_FORMATS, Wanted, result_options
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.runs.devices import DEADLINE_SECONDS, SOURCES, DeviceRequest

if TYPE_CHECKING:
    from gpudiag.probe.start import StartedProbes

# Every snapshot asks the driver about every GPU; more often would disturb what runs there.
_MIN_WATCH_SECONDS, _MAX_WATCH_SECONDS = 1.0, 86_400.0


CSV, NO_HEADER, NO_UNITS = "csv", "noheader", "nounits"  # as nvidia-smi's --format


def _print_fields(context: click.Context, _parameter: click.Parameter, is_wanted: bool) -> None:
    """List the fields of --query, and end."""
    if is_wanted and not context.resilient_parsing:
        from gpudiag.render.query_csv import render_known_fields

        click.echo(render_known_fields(), nl=False)
        context.exit()


@click.command("list", context_settings=HELP_SETTINGS)
@click.option(
    "--sources",
    metavar="NAME,...",
    shell_complete=offer_list((*SOURCES, "all")),
    help="Ask nvml, gputil, torch or all, side by side.  [default: nvml]",
)
@click.option("--wide", is_flag=True, help="Show every reading: UUID, slot, clocks, ECC, throttling ...")
@click.option(
    "--free",
    type=WholeRange(min=1),
    is_flag=False,
    flag_value=1,
    metavar="[N]",
    help=(
        "Choose N free GPUs (1 without a number); exit 1 if fewer are free. With --json: `free` on each GPU."
    ),
)
@click.option(
    "--query",
    metavar="FIELD,...",
    shell_complete=offer_fields,
    help="Print these readings as CSV, by nvidia-smi's names or gpudiag's; --help-query lists them.",
)
@click.option(
    "--help-query",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_fields,
    help="List the fields of --query.",
)
@click.option("--ids", is_flag=True, help="With --free: print only the UUIDs, for CUDA_VISIBLE_DEVICES.")
@click.option(
    "--watch",
    type=SecondsRange(_MIN_WATCH_SECONDS, _MAX_WATCH_SECONDS),
    metavar="SECONDS",
    help="Again every SECONDS; with history and keys: gpudiag watch.",
)
@deadline_option(
    DEADLINE_SECONDS, "; unless it is given, 5 s more for each GPU that the driver attaches first"
)
@result_options(
    (*PLAIN_FORMATS, CSV),
    verbose="With --wide: also normal settings, and what is not reported.",
    extras={CSV: (NO_HEADER, NO_UNITS)},
)
@click.pass_obj
def list_devices(
    started: StartedProbes | None,
    sources: str | None,
    wide: bool,
    free: int | None,
    query: str | None,
    ids: bool,
    watch: float | None,
    deadline: float,
    wanted: Wanted,
) -> ExitStatus:
    """List the GPUs, who uses them, and which are free. It shows and never judges.

    A GPU counts as free when it answers, no check found a fault on it, no compute process is on it, its load
    and its used memory are both below 10 %, its compute mode allows work, and CUDA_VISIBLE_DEVICES, where
    it is set, leaves it to this job. --ids prints UUIDs, MIG ones where MIG is on. The document of --json has
    `free` for each GPU where --free asks for it: it takes the checks and the kernel log, and is null without.
    """
    csv = _csv(
        query, wanted, {"--wide": wide, "--free": free, "--sources": sources, "--output": wanted.output}
    )
    given = {"--sources": sources, "--wide": wide, "--watch": watch, "--output": wanted.output}
    _refuse_conflicts(free, ids, wanted, [option for option, value in given.items() if value])
    names = None if sources is None else parse_names("--sources", sources, SOURCES)
    _refuse_idle(names, wide=wide, wanted=wanted)
    given_deadline = click.get_current_context().get_parameter_source("deadline")
    request = DeviceRequest(names, deadline, patient=given_deadline is ParameterSource.DEFAULT)
    return list_machine(
        ListOptions(request, wide, wanted.as_json, free, ids, watch, wanted.output, wanted.verbose, csv),
        started,
    )


def _csv(query: str | None, wanted: Wanted, others: dict[str, object]) -> CsvQuery | None:
    """The query and how it is printed; None where there is none.

    Raises:
        UsageError: a field is not known, or an option contradicts the query.
    """
    is_csv = wanted.form.partition(",")[0] == CSV
    if query is None:
        if is_csv:
            raise UsageError(
                "--format csv prints the fields of --query",
                hint="gpudiag list --query name,memory.used --format csv",
            )
        return None
    if wanted.as_json:
        raise UsageError(
            "--query prints CSV, and the document has every reading", hint="leave one of the two out"
        )
    other = next((option for option, value in others.items() if value), None)
    if other is not None:
        raise UsageError(f"--query and {other} do not go together", hint="give one of them")
    from gpudiag.render.query_csv import parse_query

    extras = wanted.form.split(",")[1:]
    return CsvQuery(
        parse_query(query), with_header=NO_HEADER not in extras, with_units=NO_UNITS not in extras
    )


def _refuse_idle(names: tuple[str, ...] | None, *, wide: bool, wanted: Wanted) -> None:
    """Raise for a flag that would do nothing beside the others."""
    if wide and wanted.as_json:
        raise UsageError("--wide changes text, and the document has every reading", hint="leave one out")
    if wide and names is not None and "nvml" not in names:
        raise UsageError("--wide shows what NVML reads, and --sources leaves it out", hint="add nvml to it")
    if wanted.verbose and not wide:
        raise UsageError("--verbose is for --wide", hint="gpudiag list --wide --verbose")


def _refuse_conflicts(free: int | None, ids: bool, wanted: Wanted, given: list[str]) -> None:
    """Raise for options that contradict each other; `given` are the others, by name."""
    if ids and free is None:
        raise UsageError("--ids prints the GPUs that --free finds", hint="give both: --free 2 --ids")
    if ids and wanted.as_json:
        raise UsageError("--ids prints UUIDs alone, and the document has them", hint="leave one out")
    if free is not None and given:
        raise UsageError(f"--free and {given[0]} do not go together", hint="give one of them")
    if "--watch" in given and "--output" in given:
        raise UsageError("--watch and --output do not go together", hint="use --watch with --json > FILE")
