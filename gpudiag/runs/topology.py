"""The recipe of `gpudiag topo`: look at the machine, judge its links and places, add what was measured before."""

from __future__ import annotations

from dataclasses import replace

from gpudiag.checks.links.topology import build_topology
from gpudiag.checks.on_topology import TOPOLOGY_CHECKS
from gpudiag.checks.runner import findings_worst_first
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing
from gpudiag.model.topology import Topology
from gpudiag.probe.start import StartedProbes
from gpudiag.runs.devices import DeviceRequest, read_devices
from gpudiag.runs.instant import judge_snapshot
from gpudiag.store.history import HistoryKeeper
from gpudiag.store.state_folder import default_store, own_machine_key


def see_topology(
    deadline_seconds: float, store: str | None, *, patient: bool, started: StartedProbes | None = None
) -> tuple[Topology, str]:
    """The topology of this machine with its verdict; and why the history could not be read, empty where it was.

    `patient`: a driver that has to attach GPUs first has more time than the deadline.
    """
    keeper = HistoryKeeper(store or default_store(), own_machine_key())
    try:
        request = DeviceRequest(("nvml",), deadline_seconds, host_state=True, patient=patient)
        snapshot = read_devices(request, started)
        history, warning = keeper.read()
    finally:
        keeper.close()
    report = judge_snapshot(snapshot, checks=TOPOLOGY_CHECKS)
    baselines = () if isinstance(history, Missing) else history.baselines
    found = tuple(one for one in findings_worst_first(report.results) if one.outcome is not Outcome.PASS)
    return replace(build_topology(snapshot, baselines), verdict=report.verdict, findings=found), warning
