"""The recipe of `gpudiag topo`: look at the machine, judge links and places, add earlier measurements."""

from __future__ import annotations

from gpudiag.checks.links.topology import build_topology
from gpudiag.checks.on_topology import TOPOLOGY_CHECKS, add_verdict
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.reading import Missing
from gpudiag.model.topology import Topology
from gpudiag.probe.start import StartedProbes
from gpudiag.runs.devices import DeviceRequest, read_devices
from gpudiag.store.history import HistoryKeeper
from gpudiag.store.state_folder import default_store, own_machine_key


def see_topology(
    deadline_seconds: float, store: str | None, *, patient: bool, started: StartedProbes | None = None
) -> tuple[Topology, str]:
    """The topology of this machine with its verdict; and why the history was not read, or empty.

    `patient`: a driver that has to attach GPUs first has more time than the deadline.
    """
    keeper = HistoryKeeper(store or default_store(), own_machine_key())
    try:
        request = DeviceRequest(("nvml",), deadline_seconds, host_state=True, patient=patient)
        snapshot = read_devices(request, started)
        history, warning = keeper.read()
    finally:
        keeper.close()
    baselines = () if isinstance(history, Missing) else history.baselines
    results = run_checks(Context(snapshot), TOPOLOGY_CHECKS)
    return add_verdict(build_topology(snapshot, baselines), results), warning
