"""Cases of the kernel's words about cards, links, drivers, disks and heat.

Each near miss is a day older or harmless.
"""

from tests.scenarios.kernel_log_cases import line
from tests.scenarios.situations import case, now, part, without_gpu

# A line of each fault, as public reports have it (tests/corpus/explain/kernel.txt names them).
LINES = {
    "kernel.network_card_fault": "mlx5_core 0000:54:00.0 ibp84s0: TX timeout detected",
    "kernel.network_cable_fault": "mlx5_core 0000:54:00.0: Port module event[error]: module 0, Cable error, High Temperature",
    "kernel.pcie_link_down": "pcieport 0000:40:01.1: pciehp: Slot(7): Card not present",
    "kernel.pcie_recovery_failed": "nvidia 0000:5d:00.0: AER: can't recover (no error_detected callback)",
    "kernel.iommu_fault": "nvidia 0000:5d:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000f address=0x0 flags=0x0000]",
    "kernel.crash": "BUG: kernel NULL pointer dereference, address: 00000000000000a8",
    "kernel.power_state": "nvidia 0000:5d:00.0: Unable to change power state from D3cold to D0, device inaccessible",
    "kernel.gpu_reset_required": "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
    "kernel.processor_throttled": "CPU7: Core temperature is above threshold, cpu clock is throttled (total events = 219)",
    "disk.read_only": "EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
    "filesystem.io_error": "nvme nvme2: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
    "filesystem.not_responding": "nfs: server 10.100.0.60 not responding, still trying",
    "driver.gpu_locked": "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 1899482",
}
# A line of each reason that a finding elsewhere has: no finding by itself.
REASONS = {
    "driver.module_unsigned": "Loading of module with unavailable key is rejected",
    "driver.module_of_other_kernel": "nvidia: version magic '6.8.0-84-generic SMP mod_unload ' should be '6.8.0-85-generic SMP mod_unload '",
    "driver.peer_memory_mismatch": "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
    "driver.gpu_not_supported": "NVRM: installed in this system is not supported by the 595.71.05",
    "driver.open_module_required": "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
    "driver.gsp_firmware_missing": "nvidia 0000:5d:00.0: Direct firmware load for nvidia/570.144/gsp_ga10x.bin failed with error -2",
    "driver.pci_region_invalid": "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
}

KERNEL_WORDS_CASES = tuple(
    case("host.kernel_words", code)(now(line(text, 0.9)), now(line(text, 1.1)))
    for code, text in LINES.items()
)

BOARD_CASES = (
    # NVIDIA/gpu-operator issue 2511: 7 of the 8 GPUs of an HGX B200 are attached.
    case("gpu.board", "gpu.board_incomplete", base="b200x8")(
        now(without_gpu(5)), now(without_gpu(5), recorded=())
    ),
    case("fabric.state", "fabric.no_domain", base="gb200x4")(
        now(
            *(
                part(index, "fabric", cluster_uuid="00000000-0000-0000-0000-000000000000")
                for index in range(4)
            )
        ),
        now(),
    ),
)
