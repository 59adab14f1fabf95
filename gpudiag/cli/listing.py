"""What `gpudiag list` does once its arguments are known. It does without click: see `cli/fast_path.py`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING

from gpudiag.cli.streams import steer
from gpudiag.errors import ExitStatus, SourceFailedError
from gpudiag.model.codec import dumps, noun
from gpudiag.model.device import Snapshot, SourceState
from gpudiag.model.reading import NOT_ASKED
from gpudiag.runs.devices import DeviceRequest, read_devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import NoReturn

    from gpudiag.model.history import KnownGpus
    from gpudiag.model.reading import Reading
    from gpudiag.probe.start import StartedProbes


@noun
class CsvQuery:
    """The fields of `--query`, and how they are printed."""

    names: tuple[str, ...]
    with_header: bool = True
    with_units: bool = True


@noun
class ListOptions:
    """The arguments of `gpudiag list`, parsed and consistent."""

    request: DeviceRequest
    wide: bool = False
    as_json: bool = False
    wanted: int | None = None  # --free N
    ids: bool = False
    watch_seconds: float | None = None
    output: Path | None = None
    verbose: bool = False
    query: CsvQuery | None = None


def list_machine(options: ListOptions, started: StartedProbes | None) -> ExitStatus:
    """Print the listing that the options ask for; `started` are probes under way already."""
    if options.watch_seconds is not None:
        _watch(options.watch_seconds, options, started)
    snapshot, known = _look(options, started)
    if options.wanted is not None:
        return _print_free(snapshot, options.wanted, options)
    if options.output is not None:
        return _print_and_keep(snapshot, known, options)
    sys.stdout.write(_render(snapshot, known, options))
    return ExitStatus.PASS


def _print_and_keep(snapshot: Snapshot, known: Reading[KnownGpus], options: ListOptions) -> ExitStatus:
    from gpudiag.cli.printing import print_result, status_with_file

    kept = print_result(
        lambda: _render(snapshot, known, options), lambda: dumps(snapshot) + "\n", options.output
    )
    return status_with_file(ExitStatus.PASS, kept=kept)


def _look(options: ListOptions, started: StartedProbes | None) -> tuple[Snapshot, Reading[KnownGpus]]:
    """The snapshot, and the GPUs of the last good run, where the listing judges by them."""
    if options.as_json or options.wanted is not None or options.query is not None:
        return read_devices(_request(options), started), NOT_ASKED
    from gpudiag.store.known_gpus import finish_known_gpus, start_known_gpus

    noted = start_known_gpus()
    return read_devices(_request(options), started), finish_known_gpus(noted)


def _request(options: ListOptions) -> DeviceRequest:
    """What to ask for: the kernel log, unless only readings are wanted; the host's state for a table."""
    asked = options.request
    is_free = options.wanted is not None
    judged = is_free or not (options.as_json or options.query is not None)
    of_machine = judged and not is_free and (asked.sources is None or "nvml" in asked.sources)
    return DeviceRequest(asked.sources, asked.deadline_seconds, judged, of_machine, asked.patient)


def _render(snapshot: Snapshot, known: Reading[KnownGpus], options: ListOptions) -> str:
    """The document, or the table with what belongs to it."""
    if options.as_json:
        return dumps(snapshot) + "\n"
    if options.query is not None:
        return _render_query(snapshot, options.query)
    from gpudiag.cli.list_text import render_list
    from gpudiag.render.style import Style, wants_colour

    style = Style(wants_colour(sys.stdout.isatty(), dict(os.environ)), verbose=options.verbose)
    return render_list(snapshot, known, options.request, wide=options.wide, style=style)


def _render_query(snapshot: Snapshot, query: CsvQuery) -> str:
    """The lines of CSV. Raises SourceFailedError: NVML gives no GPU, which is no empty machine."""
    from gpudiag.render.query_csv import render_query

    status = snapshot.source("nvml")
    if status.state not in (SourceState.OK, SourceState.NO_DEVICES):
        raise SourceFailedError(
            f"NVML gives no readings: {status.reason or status.state.value}", hint="see `gpudiag`"
        )
    return render_query(snapshot, query.names, with_header=query.with_header, with_units=query.with_units)


def _watch(interval_seconds: float, options: ListOptions, started: StartedProbes | None) -> NoReturn:
    """Show the listing again and again: each with its time, or one JSON document a line."""
    early = [started]  # for the first view only
    query = options.query

    def draw() -> str:
        nonlocal options
        snapshot, known = _look(options, early.pop() if early else None)
        text = _render(snapshot, known, options)
        if query is not None:
            options = replace(options, query=replace(query, with_header=False))
            return text
        heading = f"{snapshot.host}  {snapshot.taken_at:%Y-%m-%d %H:%M:%S} UTC\n"
        return text if options.as_json else heading + text

    _redraw(interval_seconds, draw, is_stream=options.as_json or query is not None)


# ECMA-48: cursor home, erase to the end of the line, erase to the end of the screen.
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def _redraw(interval_seconds: float, draw: Callable[[], str], *, is_stream: bool) -> NoReturn:
    """Write what `draw` returns every `interval_seconds`, until Ctrl-C ends it (exit status 130).

    On a terminal in place; in a pipe one after the other. A late view comes at once.
    """
    in_place = sys.stdout.isatty() and not is_stream
    if in_place:
        steer(sys.stdout, f"{_HOME}{_CLEAR_REST}")
    while True:
        began = monotonic()
        text = draw()
        if in_place:
            _write_in_place(text)
        else:
            sys.stdout.write(text if is_stream else f"{text}\n")
        sys.stdout.flush()
        sleep(max(0.0, interval_seconds - (monotonic() - began)))


def _write_in_place(text: str) -> None:
    steer(sys.stdout, _HOME)
    for line in text.removesuffix("\n").split("\n"):
        sys.stdout.write(line)
        steer(sys.stdout, f"{_CLEAR_LINE}\n")
    steer(sys.stdout, _CLEAR_REST)


def _print_free(snapshot: Snapshot, wanted: int, options: ListOptions) -> ExitStatus:
    """Print `wanted` free GPUs, or the reasons on standard error if there are fewer. JSON: all, marked."""
    from gpudiag.checks.gpu.availability import judge_availability, mark_free
    from gpudiag.cli.list_text import judge_free
    from gpudiag.render.devices_text import render_free, render_ids, render_too_few

    status = snapshot.source("nvml")
    if status.state not in (SourceState.OK, SourceState.NO_DEVICES):
        words = status.reason or status.state.value
        raise SourceFailedError(f"which GPUs are free is unknown without NVML: {words}", hint="see `gpudiag`")
    findings = judge_free(snapshot)
    candidates = judge_availability(snapshot, findings)
    if options.as_json:
        sys.stdout.write(dumps(mark_free(snapshot, findings)) + "\n")
    free = tuple(candidate for candidate in candidates if candidate.free)
    if len(free) < wanted:
        print(f"gpudiag: {render_too_few(wanted, candidates)}", file=sys.stderr)
        return ExitStatus.FAIL
    chosen = free[:wanted]
    if not options.as_json:
        sys.stdout.write(render_ids(chosen) if options.ids else render_free(snapshot, chosen))
    return ExitStatus.PASS
