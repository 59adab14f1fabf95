"""Start asking NVML and the host before all else is loaded (cli/fast_path.py); `take_snapshot` collects."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

from gpudiag.probe.guard import GuardedChild, start_guarded

SIMULATED = "GPUDIAG_SIMULATED"  # the scenario's name; set by `gpudiag simulate`
_HOST_ROOT = "GPUDIAG_HOST_ROOT"
LOOK_SECONDS = 5.0  # for a device, for the host and for the kernel log, in a listing and in the bare command
INSTANT_SECONDS = 1.5  # for a device, and for the host, where a gate must be quick

# Starts the child that asks torch, in that environment and interpreter; None is this one.
TorchStarter = Callable[[Mapping[str, str], "str | None"], GuardedChild]


class StartedProbes:
    """The started children, and the root under which they read."""

    def __init__(self, nvml: GuardedChild | None, host: GuardedChild, root: str) -> None:
        """Keep the children; `nvml` is None where NVML is not asked.

        `host_state` and `kernel_log` are what a judgement of the host needs beside them: None until they are
        started.
        """
        self.nvml = nvml
        self.host = host
        self.root = root
        self.host_state: GuardedChild | None = None
        self.kernel_log: GuardedChild | None = None
        self.history: object = None  # what reads the store, where the command line has started it

    def start_judging(
        self, environment: Mapping[str, str], log_seconds: float | None, *, host_state: bool
    ) -> None:
        """Start reading the host's state and, for at most `log_seconds`, the kernel log, if not started."""
        if log_seconds is not None and self.kernel_log is None:
            entry = "gpudiag.probe.kernel_log.read:stream_kernel_log"
            self.kernel_log = start_guarded(entry, self.root, log_seconds)
        if host_state and self.host_state is None:
            entry = "gpudiag.probe.host.state:stream_host_state"
            self.host_state = start_guarded(entry, self.root, dict(environment))


def start_probes(
    sources: Collection[str] = ("nvml",),
    *,
    environment: Mapping[str, str] = os.environ,
    root: str | None = None,
    wake: bool = True,
) -> StartedProbes:
    """Children that ask NVML, if wanted, and the host. Without `wake`, suspended GPUs are not asked."""
    root = root or host_root(environment)
    nvml = start_guarded("gpudiag.probe.nvml.early:stream_nvml", root, wake) if "nvml" in sources else None
    return StartedProbes(nvml, start_guarded("gpudiag.probe.host.machine:stream_machine", root), root)


def host_root(environment: Mapping[str, str]) -> str:
    """The root of the machine's files: `/`, or the host tree of the simulated machine we are on."""
    return environment.get(_HOST_ROOT, "/") if environment.get(SIMULATED) else "/"
