"""The checks that one snapshot of the GPUs and the kernel log answers: those that judge which are free.

They are part of BUILTIN, and loaded without the rest of it. Every other check needs what such a look does
not read (the host's state, torch, an earlier or recorded snapshot) and would be skipped there.
"""

from gpudiag.checks.gpu.board import gpu_model
from gpudiag.checks.gpu.devices import gpu_count, gpu_hung, gpu_lost, gpu_started
from gpudiag.checks.gpu.gone import machine_gpus
from gpudiag.checks.gpu.leftovers import memory_leftover, process_dead
from gpudiag.checks.gpu.license import vgpu_license
from gpudiag.checks.gpu.memory import ecc_mode, ecc_sram, ecc_uncorrected, memory_size
from gpudiag.checks.gpu.memory_repair import memory_page_retirement, memory_repair, memory_row_remap
from gpudiag.checks.gpu.settings import (
    clocks_application,
    mode_compute,
    mode_mig,
    power_idle_draw,
    power_limit,
)
from gpudiag.checks.gpu.temperature import temperature_gpu, temperature_memory, temperature_peers
from gpudiag.checks.gpu.throttling import (
    clocks_hardware_slowdown,
    clocks_power_capped,
    clocks_software_thermal,
)
from gpudiag.checks.gpu.xid import xid_kernel_log
from gpudiag.checks.host.kernel_faults import host_kernel_log
from gpudiag.checks.links.fabric import fabric_state
from gpudiag.checks.links.nvlink import nvlink_rate, nvlink_state
from gpudiag.checks.links.pcie import pcie_errors, pcie_generation, pcie_slot, pcie_width
from gpudiag.checks.links.peers import peer_access
from gpudiag.checks.links.sxid import sxid_kernel_log
from gpudiag.checks.registry import Check
from gpudiag.checks.software.driver import driver_firmware, driver_nouveau, driver_persistence
from gpudiag.checks.software.sources import driver_values, nvml_answers, nvml_calls, sources_agree

GPU_CHECKS: tuple[Check, ...] = (
    *(nvml_answers, nvml_calls, gpu_lost, gpu_hung, gpu_count, machine_gpus, gpu_model, gpu_started),
    *(xid_kernel_log, sxid_kernel_log, sources_agree),
    *(driver_nouveau, driver_firmware, driver_persistence, driver_values),
    *(memory_size, ecc_uncorrected, ecc_sram),
    *(memory_row_remap, memory_page_retirement, memory_repair, ecc_mode),
    *(temperature_gpu, temperature_memory, temperature_peers),
    *(clocks_hardware_slowdown, clocks_software_thermal, clocks_power_capped, clocks_application),
    *(power_limit, power_idle_draw),
    *(pcie_width, pcie_generation, pcie_slot, pcie_errors),
    *(nvlink_state, nvlink_rate, fabric_state, peer_access),
    *(mode_compute, mode_mig, vgpu_license, process_dead, memory_leftover, host_kernel_log),
)
