"""The checks of `gpudiag topo`: those of an instant preflight that are about links and places."""

from gpudiag.checks.gpu.devices import gpu_count, gpu_hung, gpu_lost
from gpudiag.checks.links.fabric import fabric_manager, fabric_state
from gpudiag.checks.links.infiniband import infiniband_peer_memory, infiniband_port
from gpudiag.checks.links.nvlink import nvlink_rate, nvlink_state
from gpudiag.checks.links.pcie import pcie_generation, pcie_slot, pcie_width
from gpudiag.checks.links.peers import host_acs, host_iommu, peer_access
from gpudiag.checks.links.placement import topology_placement
from gpudiag.checks.registry import Check
from gpudiag.checks.software.sources import nvml_answers

TOPOLOGY_CHECKS: tuple[Check, ...] = (
    nvml_answers, gpu_lost, gpu_hung, gpu_count, pcie_width, pcie_generation, pcie_slot, nvlink_state, nvlink_rate,
    fabric_state, fabric_manager, peer_access, host_acs, host_iommu, infiniband_port, infiniband_peer_memory,
    topology_placement,
)  # fmt: skip
