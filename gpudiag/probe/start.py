"""Start asking NVML and the host before anything else is loaded; `inventory.take_snapshot` collects.

The quickest command forks these children first and imports the rest of itself while they work (cli/fast_path.py).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from gpudiag.probe.guard import GuardedChild, start_guarded

SIMULATED = "GPUDIAG_SIMULATED"  # the scenario's name; set by `gpudiag simulate`
_HOST_ROOT = "GPUDIAG_HOST_ROOT"


class StartedProbes:
    """The started children, and the root under which they read."""

    def __init__(self, nvml: GuardedChild | None, host: GuardedChild, root: str) -> None:
        """Keep the children; `nvml` is None where NVML is not asked."""
        self.nvml = nvml
        self.host = host
        self.root = root


def start_probes(
    sources: Collection[str] = ("nvml",),
    *,
    environment: Mapping[str, str] = os.environ,
    root: str | None = None,
) -> StartedProbes:
    """Children that ask NVML, if it is among the sources, and the host; each is collected later."""
    root = root or host_root(environment)
    nvml = start_guarded("gpudiag.probe.nvml.early:stream_nvml", root) if "nvml" in sources else None
    return StartedProbes(nvml, start_guarded("gpudiag.probe.host.machine:stream_machine", root), root)


def host_root(environment: Mapping[str, str]) -> str:
    """The root of the machine's files: `/`, or the host tree of the simulated machine we are on."""
    return environment.get(_HOST_ROOT, "/") if environment.get(SIMULATED) else "/"
