"""`gpudiag list` on a machine without a GPU row: what each source said, and why that is so."""

from gpudiag.checks.traces import Trace
from gpudiag.model.device import Snapshot
from gpudiag.render.devices_text import simulated_lines
from gpudiag.render.sources_text import render_sources
from gpudiag.render.style import PLAIN, Style, wrapped


def render_absent(snapshot: Snapshot, traces: tuple[Trace, ...], style: Style = PLAIN) -> str:
    """Whether there should be a GPU here, then every source's answer, then what to type next."""
    lines = simulated_lines(snapshot)
    if traces:
        seen = "; ".join(trace.text for trace in traces)
        lines += [
            style.paint(line, "red")
            for line in wrapped(f"No working GPU on {snapshot.host}, and traces of one: {seen}.")
        ]
        following = "Next: gpudiag (the verdict and what to do)"
    else:
        lines += wrapped(
            f"No GPU on {snapshot.host}, and no trace of one (PCI bus, /dev, driver, allocation)."
        )
        following = "Next: gpudiag nccl-test --backend gloo | gpudiag simulate h100x8 -- gpudiag list"
    return "\n".join([*lines, "", render_sources(snapshot, style).rstrip("\n"), following]) + "\n"
