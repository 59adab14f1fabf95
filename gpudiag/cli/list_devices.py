"""`gpudiag list`: what GPUs are here, who uses them, which are free."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import json_option, output_option, parse_names
from gpudiag.errors import ExitStatus, SourceFailedError, UsageError
from gpudiag.model.codec import dumps
from gpudiag.model.device import Snapshot, SourceState
from gpudiag.runs.devices import DEADLINE_SECONDS, SOURCES, DeviceRequest, take_devices

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
    "--watch", type=click.FloatRange(min=_MIN_WATCH_SECONDS), metavar="SECONDS", help="Again every SECONDS."
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0.1, max=_MAX_DEADLINE_SECONDS),
    default=DEADLINE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait for an answer.",
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
    _refuse_conflicts(wanted, ids=ids, watch=watch, wide=wide, as_json=as_json, output=output)
    names = None if sources is None else parse_names("--sources", sources, SOURCES)
    request = DeviceRequest(names, deadline)
    if wanted is not None:
        return _print_free(take_devices(request, started), wanted, ids=ids)
    if watch is not None:
        _watch(watch, request, started, wide=wide, as_json=as_json)
    snapshot = take_devices(request, started)
    if output is not None:
        from gpudiag.runs.output import write_document

        write_document(output, dumps(snapshot) + "\n")
    sys.stdout.write(_render(snapshot, request, wide=wide, as_json=as_json))
    return ExitStatus.PASS


def _refuse_conflicts(
    wanted: int | None, *, ids: bool, watch: float | None, wide: bool, as_json: bool, output: Path | None
) -> None:
    given = {"--watch": watch is not None, "--json": as_json, "--wide": wide, "--output": output is not None}
    if ids and wanted is None:
        raise UsageError("--ids says how to print what --free finds", hint="give both: --free 2 --ids")
    if wanted is not None:
        for option, is_given in given.items():
            if is_given:
                raise UsageError(f"--free and {option} do not go together", hint="give one of them")
    if watch is not None and output is not None:
        raise UsageError("--watch and --output do not go together", hint="use --watch with --json > FILE")


def _render(snapshot: Snapshot, request: DeviceRequest, *, wide: bool, as_json: bool) -> str:
    """The document, or the table with what belongs to it."""
    if as_json:
        return dumps(snapshot) + "\n"
    from gpudiag.cli.list_text import render_list
    from gpudiag.render.style import Style, wants_colour

    style = Style(wants_colour(sys.stdout.isatty(), dict(os.environ)))
    return render_list(snapshot, request, wide=wide, style=style)


def _watch(
    interval_seconds: float,
    request: DeviceRequest,
    started: StartedProbes | None,
    *,
    wide: bool,
    as_json: bool,
) -> NoReturn:
    """Show the listing again and again: each with its time, or one JSON document a line."""
    from gpudiag.cli.watch import redraw

    early = [started]  # for the first view only

    def draw() -> str:
        snapshot = take_devices(request, early.pop() if early else None)
        text = _render(snapshot, request, wide=wide, as_json=as_json)
        return text if as_json else f"{snapshot.host}  {snapshot.taken_at:%Y-%m-%d %H:%M:%S} UTC\n{text}"

    redraw(interval_seconds, draw, as_json=as_json)


def _print_free(snapshot: Snapshot, wanted: int, *, ids: bool) -> ExitStatus:
    """Print `wanted` free GPUs; where there are fewer, nothing but the reasons on standard error."""
    from gpudiag.cli.list_text import find_candidates
    from gpudiag.render.free_text import render_free, render_ids, render_too_few

    status = snapshot.source("nvml")
    if status.state not in (SourceState.OK, SourceState.NO_DEVICES):
        raise SourceFailedError(
            f"NVML cannot say which GPUs are free: {status.reason or status.state.value}",
            hint="see `gpudiag`",
        )
    candidates = find_candidates(snapshot)
    free = tuple(candidate for candidate in candidates if candidate.free)
    if len(free) < wanted:
        print(f"gpudiag: {render_too_few(wanted, candidates)}", file=sys.stderr)
        return ExitStatus.FAIL
    chosen = free[:wanted]
    sys.stdout.write(render_ids(chosen) if ids else render_free(snapshot, chosen))
    return ExitStatus.PASS
