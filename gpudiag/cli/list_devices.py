"""`gpudiag list`: what GPUs are here, who uses them, which are free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.listing import ListOptions, list_machine
from gpudiag.cli.options import SecondsRange, json_option, output_option, parse_names
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.runs.devices import DEADLINE_SECONDS, SOURCES, DeviceRequest

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.probe.start import StartedProbes

_MAX_DEADLINE_SECONDS = 600.0
# Every snapshot asks the driver about every GPU; more often would disturb what runs there.
_MIN_WATCH_SECONDS = 1.0


@click.command("list", context_settings=HELP_SETTINGS)
@click.option(
    "--sources", metavar="NAME,...", help="Ask nvml, gputil, torch or all, side by side.  [default: nvml]"
)
@click.option("--wide", is_flag=True, help="Every reading: UUID, slot, clocks, ECC, throttling ...")
@click.option(
    "--free",
    "wanted",
    type=click.IntRange(min=1),
    metavar="N",
    help="N GPUs free to use; exit 1 if fewer are.",
)
@click.option("--ids", is_flag=True, help="With --free: only the UUIDs, for CUDA_VISIBLE_DEVICES.")
@click.option(
    "--watch", type=SecondsRange(min=_MIN_WATCH_SECONDS), metavar="SECONDS", help="Again every SECONDS."
)
@click.option(
    "--deadline",
    type=SecondsRange(min=0.1, max=_MAX_DEADLINE_SECONDS),
    default=DEADLINE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait for an answer; unless it is given, 5 s more for each GPU that the driver attaches first.",
)
@json_option
@output_option
@click.pass_obj
def list_devices(
    started: StartedProbes | None,
    sources: str | None,
    wide: bool,
    wanted: int | None,
    ids: bool,
    watch: float | None,
    deadline: float,
    as_json: bool,
    output: Path | None,
) -> ExitStatus:
    """What GPUs are here, who uses them, which are free. It shows and never judges.

    A GPU counts as free when it answers, no check found a fault on it, no compute process is on it, its load
    and its used memory are both below 10 %, its compute mode allows work, and CUDA_VISIBLE_DEVICES, where
    it is set, leaves it to this job. --ids prints UUIDs, MIG ones where MIG is on.
    """
    given = {"--sources": sources, "--wide": wide, "--watch": watch, "--json": as_json, "--output": output}
    _refuse_conflicts(wanted, ids, [option for option, value in given.items() if value])
    names = None if sources is None else parse_names("--sources", sources, SOURCES)
    given_deadline = click.get_current_context().get_parameter_source("deadline")
    request = DeviceRequest(names, deadline, patient=given_deadline is ParameterSource.DEFAULT)
    return list_machine(ListOptions(request, wide, as_json, wanted, ids, watch, output), started)


def _refuse_conflicts(wanted: int | None, ids: bool, given: list[str]) -> None:
    """Raise for options that contradict each other; `given` are the others, by name."""
    if ids and wanted is None:
        raise UsageError("--ids says how to print what --free finds", hint="give both: --free 2 --ids")
    if wanted is not None and given:
        raise UsageError(f"--free and {given[0]} do not go together", hint="give one of them")
    if "--watch" in given and "--output" in given:
        raise UsageError("--watch and --output do not go together", hint="use --watch with --json > FILE")
