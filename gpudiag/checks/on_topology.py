"""The checks of `gpudiag topo`: those of an instant preflight that are about links and places."""

from collections.abc import Iterable
from dataclasses import replace

from gpudiag.checks.gpu.devices import gpu_count, gpu_hung, gpu_lost
from gpudiag.checks.links.fabric import fabric_manager, fabric_state
from gpudiag.checks.links.infiniband import infiniband_peer_memory, infiniband_port
from gpudiag.checks.links.nvlink import nvlink_rate, nvlink_state
from gpudiag.checks.links.pcie import pcie_generation, pcie_slot, pcie_width
from gpudiag.checks.links.peers import host_acs, host_iommu, peer_access
from gpudiag.checks.links.placement import topology_placement
from gpudiag.checks.registry import Check
from gpudiag.checks.runner import findings_worst_first, verdict
from gpudiag.checks.software.sources import nvml_answers
from gpudiag.model.finding import CheckResult, Outcome
from gpudiag.model.topology import Topology

TOPOLOGY_CHECKS: tuple[Check, ...] = (
    nvml_answers,
    gpu_lost,
    gpu_hung,
    gpu_count,
    pcie_width,
    pcie_generation,
    pcie_slot,
    nvlink_state,
    nvlink_rate,
    fabric_state,
    fabric_manager,
    peer_access,
    host_acs,
    host_iommu,
    infiniband_port,
    infiniband_peer_memory,
    topology_placement,
)


def add_verdict(topology: Topology, results: Iterable[CheckResult]) -> Topology:
    """The topology with the findings of these checks among the results, and their verdict.

    Without a GPU it is never PASS: there are no links to look at.
    """
    names = {check.name for check in TOPOLOGY_CHECKS}
    own = tuple(result for result in results if result.check in names)
    outcome = verdict(own)
    if outcome is Outcome.PASS and not topology.devices:
        outcome = Outcome.ERROR
    found = tuple(one for one in findings_worst_first(own) if one.outcome is not Outcome.PASS)
    return replace(topology, verdict=outcome, findings=found)
