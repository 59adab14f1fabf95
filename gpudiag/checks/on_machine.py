"""The checks of the bare `gpudiag` and `gpudiag list`: those of an instant preflight by one look.

They need the GPUs, the kernel log and the host's state, and neither torch nor an earlier look: where the gate
would WARN or FAIL about this machine, the listing does too. Only `memory.free` is the gate's alone, as in the
service: it is for a job that is about to start, and a machine that trains has little of it.
"""

from gpudiag.checks.gpu.board import gpu_board
from gpudiag.checks.gpu.leftovers import process_foreign
from gpudiag.checks.host.health import host_clock, host_disk, host_governor, host_memory, host_numa
from gpudiag.checks.host.kernel_faults import host_kernel_log
from gpudiag.checks.host.kernel_words import host_kernel_words
from gpudiag.checks.host.limits import host_cgroup, host_process_limits, host_shared_memory
from gpudiag.checks.host.network import network_interface, network_loopback, network_name
from gpudiag.checks.links.fabric import fabric_manager
from gpudiag.checks.links.infiniband import infiniband_peer_memory, infiniband_port
from gpudiag.checks.links.peers import host_acs, host_iommu
from gpudiag.checks.links.placement import topology_placement
from gpudiag.checks.on_gpus import GPU_CHECKS
from gpudiag.checks.registry import Check
from gpudiag.checks.software.settings import (
    environment_cuda_visible_devices,
    environment_debug,
    environment_interface,
    environment_nccl,
)

MACHINE_CHECKS: tuple[Check, ...] = (
    *(one for one in GPU_CHECKS if one is not host_kernel_log),
    *(gpu_board, host_kernel_words, host_kernel_log, fabric_manager, host_acs, host_iommu),
    *(infiniband_port, infiniband_peer_memory, topology_placement, process_foreign),
    *(environment_cuda_visible_devices, environment_nccl, environment_interface, environment_debug),
    *(host_memory, host_disk, host_shared_memory, host_process_limits, host_cgroup, host_numa),
    *(host_governor, host_clock, network_loopback, network_name, network_interface),
)
