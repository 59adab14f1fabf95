"""The checks that one look at the GPUs is enough for: what `gpudiag list` and the bare `gpudiag` judge by.

They are part of BUILTIN, and loaded without the rest of it. Every other check wants what a listing does
not read (the host's state, torch, an earlier or recorded snapshot) and would be skipped there.
"""

from gpudiag.checks.devices import gpu_count, gpu_hung, gpu_lost
from gpudiag.checks.driver import driver_firmware, driver_nouveau, driver_persistence
from gpudiag.checks.fabric import fabric_state
from gpudiag.checks.gone import machine_gpus
from gpudiag.checks.gpu_start import gpu_started
from gpudiag.checks.leftovers import memory_leftover, process_dead
from gpudiag.checks.memory_errors import ecc_mode, ecc_sram, ecc_uncorrected
from gpudiag.checks.memory_repair import memory_page_retirement, memory_repair, memory_row_remap
from gpudiag.checks.memory_size import memory_size
from gpudiag.checks.modes import mode_compute, mode_mig
from gpudiag.checks.nvlink_state import nvlink_state
from gpudiag.checks.nvml_calls import nvml_calls
from gpudiag.checks.pcie import pcie_generation, pcie_width
from gpudiag.checks.pcie_errors import pcie_errors
from gpudiag.checks.peers import peer_access
from gpudiag.checks.power_settings import clocks_application, power_idle_draw, power_limit
from gpudiag.checks.registry import Check
from gpudiag.checks.sources import nvml_answers, sources_agree
from gpudiag.checks.sxid import sxid_kernel_log
from gpudiag.checks.temperature import temperature_gpu, temperature_memory, temperature_peers
from gpudiag.checks.throttling import clocks_hardware_slowdown, clocks_power_capped, clocks_software_thermal
from gpudiag.checks.unknown_values import driver_values
from gpudiag.checks.xid import xid_kernel_log

GPU_CHECKS: tuple[Check, ...] = (
    nvml_answers, nvml_calls, gpu_lost, gpu_hung, gpu_count, machine_gpus, gpu_started, xid_kernel_log,
    sxid_kernel_log, sources_agree,
    driver_nouveau, driver_firmware, driver_persistence, driver_values,
    memory_size, ecc_uncorrected, ecc_sram, memory_row_remap, memory_page_retirement, memory_repair, ecc_mode,
    temperature_gpu, temperature_memory, temperature_peers, clocks_hardware_slowdown, clocks_software_thermal,
    clocks_power_capped, clocks_application, power_limit, power_idle_draw,
    pcie_width, pcie_generation, pcie_errors, nvlink_state, fabric_state, peer_access,
    mode_compute, mode_mig, process_dead, memory_leftover,
)  # fmt: skip
