"""The bare `gpudiag`: the machine in five lines, with the verdict of the instant checks."""

import os
import sys
from time import monotonic

from gpudiag.checks.gpu.availability import judge_availability
from gpudiag.checks.on_machine import MACHINE_CHECKS
from gpudiag.checks.runner import findings_worst_first
from gpudiag.cli.printing import EXIT_STATUSES
from gpudiag.errors import ExitStatus
from gpudiag.probe.start import StartedProbes
from gpudiag.render.overview_text import render_overview
from gpudiag.render.style import Style, wants_colour
from gpudiag.runs.devices import DeviceRequest, read_devices
from gpudiag.runs.instant import judge_snapshot
from gpudiag.store.known_gpus import finish_known_gpus, start_known_gpus


def overview(started: StartedProbes | None) -> ExitStatus:
    """Print the overview; the exit status is its verdict's. `started` are probes under way already."""
    began = monotonic() if started is None else started.host.started_at
    noted = start_known_gpus()
    snapshot = read_devices(DeviceRequest(sources=("nvml",), kernel_log=True, host_state=True), started)
    report = judge_snapshot(snapshot, finish_known_gpus(noted), MACHINE_CHECKS)
    findings = findings_worst_first(report.results)
    candidates = judge_availability(report.snapshot, findings)
    style = Style(wants_colour(sys.stdout.isatty(), dict(os.environ)))
    sys.stdout.write(render_overview(report, findings, candidates, monotonic() - began, style))
    return EXIT_STATUSES[report.verdict]
