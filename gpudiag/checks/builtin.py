"""All checks, in run order: within one outcome, findings are reported in this order."""

from gpudiag.checks.drift import machine_ports, machine_settings, performance_drift
from gpudiag.checks.expected import machine_expected
from gpudiag.checks.gpu.board import gpu_board
from gpudiag.checks.gpu.holders import memory_free
from gpudiag.checks.gpu.leftovers import process_foreign
from gpudiag.checks.gpu.memory import ecc_corrected_rate
from gpudiag.checks.gpu.settings import gpu_looks_stuck
from gpudiag.checks.gpu.throttling import clocks_stuck_low, clocks_throttle_time
from gpudiag.checks.host.health import host_clock, host_disk, host_governor, host_memory, host_numa
from gpudiag.checks.host.kernel_words import host_kernel_words
from gpudiag.checks.host.limits import host_cgroup, host_process_limits, host_shared_memory
from gpudiag.checks.host.network import network_interface, network_loopback, network_name
from gpudiag.checks.links.fabric import fabric_manager
from gpudiag.checks.links.infiniband import infiniband_errors, infiniband_peer_memory, infiniband_port
from gpudiag.checks.links.nvlink import nvlink_errors
from gpudiag.checks.links.pcie import pcie_replay_rate
from gpudiag.checks.links.peers import host_acs, host_iommu
from gpudiag.checks.links.placement import topology_placement
from gpudiag.checks.on_gpus import GPU_CHECKS
from gpudiag.checks.ranks.acceptance import collective_operations, host_disk_data, network_card_pairs
from gpudiag.checks.ranks.active import active_coverage, active_ranks, bandwidth_data, collective_all_reduce
from gpudiag.checks.ranks.bandwidth import bandwidth_host_device, bandwidth_memory, bandwidth_peer
from gpudiag.checks.ranks.compute import (
    compute_determinism,
    compute_heat,
    compute_matmul,
    compute_sustained,
    memory_patterns,
)
from gpudiag.checks.registry import Check
from gpudiag.checks.software.driver import driver_version
from gpudiag.checks.software.settings import (
    environment_cuda_visible_devices,
    environment_debug,
    environment_interface,
    environment_nccl,
)
from gpudiag.checks.software.torch_build import cuda_context, torch_architectures, torch_build, torch_driver
from gpudiag.checks.training.strategy import train_ddp, train_strategies

# What needs more than one look at the GPUs: the host's state, an earlier look, torch, a test on ranks. Each
# stands behind the check of `GPU_CHECKS` that is named.
BEHIND: dict[str, tuple[Check, ...]] = {
    "machine.gpus": (gpu_board,),
    "driver.nouveau": (driver_version,),
    "ecc.mode": (ecc_corrected_rate,),
    "clocks.software_thermal_slowdown": (clocks_throttle_time, clocks_stuck_low),
    "pcie.errors": (pcie_replay_rate,),
    "nvlink.rate": (nvlink_errors,),
    "fabric.state": (fabric_manager,),
    "peer.access": (
        *(host_acs, host_iommu, infiniband_port, infiniband_errors, infiniband_peer_memory),
        topology_placement,
    ),
    "vgpu.license": (gpu_looks_stuck,),
    "process.dead": (process_foreign,),
    "memory.leftover": (
        *(memory_free, cuda_context, torch_build, torch_driver, torch_architectures),
        *(environment_cuda_visible_devices, environment_nccl, environment_interface, environment_debug),
        host_kernel_words,
    ),
    "host.kernel_log": (
        *(host_memory, host_disk, host_shared_memory, host_process_limits, host_cgroup, host_numa),
        *(host_governor, host_clock, network_loopback, network_name, network_interface, machine_ports),
        *(machine_settings, machine_expected, collective_all_reduce, active_ranks, active_coverage),
        *(bandwidth_data, compute_determinism, memory_patterns, bandwidth_memory, bandwidth_host_device),
        *(bandwidth_peer, compute_matmul, compute_sustained, compute_heat, collective_operations),
        *(network_card_pairs, host_disk_data, performance_drift, train_ddp, train_strategies),
    ),
}

BUILTIN: tuple[Check, ...] = tuple(
    check for first in GPU_CHECKS for check in (first, *BEHIND.get(first.name, ()))
)
