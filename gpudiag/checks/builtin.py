"""All checks, in run order: within one outcome, findings are reported in this order."""

from gpudiag.checks.drift import machine_ports, machine_settings, performance_drift
from gpudiag.checks.expected import machine_expected
from gpudiag.checks.gpu.board import gpu_board, gpu_model
from gpudiag.checks.gpu.devices import gpu_count, gpu_hung, gpu_lost, gpu_started
from gpudiag.checks.gpu.gone import machine_gpus
from gpudiag.checks.gpu.holders import memory_free
from gpudiag.checks.gpu.leftovers import memory_leftover, process_dead, process_foreign
from gpudiag.checks.gpu.license import vgpu_license
from gpudiag.checks.gpu.memory import (
    ecc_corrected_rate,
    ecc_mode,
    ecc_sram,
    ecc_uncorrected,
    memory_page_retirement,
    memory_repair,
    memory_row_remap,
    memory_size,
)
from gpudiag.checks.gpu.settings import (
    clocks_application,
    gpu_looks_stuck,
    mode_compute,
    mode_mig,
    power_idle_draw,
    power_limit,
)
from gpudiag.checks.gpu.throttling import (
    clocks_hardware_slowdown,
    clocks_power_capped,
    clocks_software_thermal,
    clocks_stuck_low,
    clocks_throttle_time,
    temperature_gpu,
    temperature_memory,
    temperature_peers,
)
from gpudiag.checks.gpu.xid import xid_kernel_log
from gpudiag.checks.host.health import host_clock, host_disk, host_governor, host_memory, host_numa
from gpudiag.checks.host.kernel_faults import host_kernel_log
from gpudiag.checks.host.kernel_words import host_kernel_words
from gpudiag.checks.host.limits import host_cgroup, host_process_limits, host_shared_memory
from gpudiag.checks.host.network import network_interface, network_loopback, network_name
from gpudiag.checks.links.fabric import fabric_manager, fabric_state
from gpudiag.checks.links.infiniband import infiniband_errors, infiniband_peer_memory, infiniband_port
from gpudiag.checks.links.nvlink import nvlink_errors, nvlink_state
from gpudiag.checks.links.pcie import pcie_errors, pcie_generation, pcie_replay_rate, pcie_width
from gpudiag.checks.links.peers import host_acs, host_iommu, peer_access
from gpudiag.checks.links.sxid import sxid_kernel_log
from gpudiag.checks.ranks.active import active_coverage, active_ranks, bandwidth_data, collective_all_reduce
from gpudiag.checks.ranks.bandwidth import bandwidth_host_device, bandwidth_memory, bandwidth_peer
from gpudiag.checks.ranks.compute import (
    compute_determinism,
    compute_matmul,
    compute_sustained,
    memory_patterns,
)
from gpudiag.checks.registry import Check
from gpudiag.checks.software.driver import driver_firmware, driver_nouveau, driver_persistence, driver_version
from gpudiag.checks.software.settings import (
    environment_cuda_visible_devices,
    environment_debug,
    environment_interface,
    environment_nccl,
)
from gpudiag.checks.software.sources import driver_values, nvml_answers, nvml_calls, sources_agree
from gpudiag.checks.software.torch_build import cuda_context, torch_architectures, torch_build, torch_driver
from gpudiag.checks.training.run import train_ddp, train_strategies

# Discovery and driver
_DISCOVERY = (
    nvml_answers, nvml_calls, gpu_lost, gpu_hung, gpu_count, machine_gpus, gpu_board, gpu_model, gpu_started, xid_kernel_log,
    sxid_kernel_log,
    sources_agree, driver_nouveau, driver_version, driver_firmware, driver_persistence,
    driver_values,
)  # fmt: skip
# The memory of the GPUs
_MEMORY = (
    memory_size, ecc_uncorrected, ecc_sram, memory_row_remap, memory_page_retirement, memory_repair, ecc_mode,
    ecc_corrected_rate,
)  # fmt: skip
# Heat, power, clocks
_PACE = (
    temperature_gpu, temperature_memory, temperature_peers, clocks_hardware_slowdown, clocks_software_thermal,
    clocks_throttle_time, clocks_stuck_low, clocks_power_capped, clocks_application, power_limit,
    power_idle_draw,
)  # fmt: skip
# Links between GPUs, and to the network
_LINKS = (
    pcie_width, pcie_generation, pcie_errors, pcie_replay_rate, nvlink_state, nvlink_errors, fabric_state,
    fabric_manager, peer_access, host_acs, host_iommu, infiniband_port, infiniband_errors,
    infiniband_peer_memory,
)  # fmt: skip
# How the GPUs are set, and who is on them
_USE = (
    mode_compute, mode_mig, vgpu_license, gpu_looks_stuck, process_dead, process_foreign, memory_leftover, memory_free,
)  # fmt: skip
# The job's software and environment
_SOFTWARE = (
    cuda_context, torch_build, torch_driver, torch_architectures, environment_cuda_visible_devices,
    environment_nccl, environment_interface, environment_debug,
)  # fmt: skip
# The host
_HOST = (
    host_kernel_words, host_kernel_log, host_memory, host_disk, host_shared_memory, host_process_limits, host_cgroup, host_numa,
    host_governor, host_clock, network_loopback, network_name, network_interface, machine_ports,
    machine_settings, machine_expected,
)  # fmt: skip

# What active tests measured, on ranks
_TESTS = (
    collective_all_reduce, active_ranks, active_coverage, bandwidth_data, compute_determinism, memory_patterns,
    bandwidth_memory, bandwidth_host_device, bandwidth_peer, compute_matmul, compute_sustained,
    performance_drift, train_ddp, train_strategies,
)  # fmt: skip

BUILTIN: tuple[Check, ...] = (*_DISCOVERY, *_MEMORY, *_PACE, *_LINKS, *_USE, *_SOFTWARE, *_HOST, *_TESTS)
