"""`gpudiag list` as text: the renderings that make up one listing. Loaded only for text."""

from gpudiag.checks.gpu.availability import judge_availability
from gpudiag.checks.gpu.gone import GPU_GONE
from gpudiag.checks.on_machine import MACHINE_CHECKS
from gpudiag.checks.runner import findings_worst_first
from gpudiag.checks.software.sources import DISAGREEMENT
from gpudiag.checks.traces import Trace, gpu_traces
from gpudiag.model.device import Snapshot, SourceState
from gpudiag.model.finding import Finding
from gpudiag.model.history import KnownGpus
from gpudiag.model.reading import Reading
from gpudiag.render.devices_text import render_devices
from gpudiag.render.sources_text import render_absent, render_sources
from gpudiag.render.style import Style
from gpudiag.render.wide_text import render_wide
from gpudiag.runs.devices import DeviceRequest
from gpudiag.runs.instant import judge_snapshot


def render_list(
    snapshot: Snapshot, known: Reading[KnownGpus], request: DeviceRequest, *, wide: bool, style: Style
) -> str:
    """The table or the blocks, then the sources side by side; `known`: the GPUs of the last good run."""
    if request.sources is not None and "nvml" not in request.sources:
        return render_sources(snapshot, style)
    findings = findings_worst_first(judge_snapshot(snapshot, known, MACHINE_CHECKS).results)
    if not snapshot.devices or snapshot.source("nvml").state is not SourceState.OK:
        gone = next((finding.message for finding in findings if finding.code == GPU_GONE.code), None)
        were_here = (Trace("history", gone),) if gone else ()
        return render_absent(snapshot, (*gpu_traces(snapshot), *were_here), style)
    candidates = judge_availability(snapshot, findings)
    render = render_wide if wide else render_devices
    if request.sources is None or len(request.sources) == 1:
        return render(snapshot, findings, candidates, style)
    # The part about the sources shows where they differ.
    above = tuple(finding for finding in findings if finding.code != DISAGREEMENT.code)
    return f"{render(snapshot, above, candidates, style)}\n{render_sources(snapshot, style)}"


def judge_free(snapshot: Snapshot) -> tuple[Finding, ...]:
    """The findings by which a GPU is left out of those that are free, worst first."""
    return findings_worst_first(judge_snapshot(snapshot).results)
