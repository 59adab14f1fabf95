"""The faults and the healthy kinds of machine that the alerts are tried on, and what a person should get.

A case names the machine as it is when all is well, what happens to it, and how it is repaired: the fault goes
while the machine is watched, its GPU is reset (the kernel log keeps the fault), or the machine is rebooted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpudiag.compat import StrEnum


class How(StrEnum):
    """How a fault comes, or goes."""

    WATCHED = "while watched"
    RESET = "by a reset"
    BOOT = "by a boot"  # or another start of the service


@dataclass(frozen=True, slots=True)
class Case:
    """One machine, its fault, and the names of the alerts that it must raise."""

    name: str
    what: str
    faults: str = ""
    pages: tuple[str, ...] = ()
    warns: tuple[str, ...] = ()
    machine: str = "h100x8"
    more: str = ""  # TOML of the fault
    well: str = ""  # faults that are there before and after
    comes: How = How.WATCHED
    goes: How = How.RESET
    words: tuple[str, ...] = ()  # words that the text must have
    stops: bool = False  # the service itself is what fails

    @property
    def is_healthy(self) -> bool:
        """Whether nothing may be raised."""
        return not self.pages and not self.warns


_ALL = range(8)


def _each(fault: str, gpus: range = _ALL) -> str:
    return "+".join(f"{fault}:{gpu}" for gpu in gpus)


_GPU = ("GpuFailed",)
_GPUS = ("GpusFailed",)
_HOST = ("HostFailed",)
_WARN = ("GpuDegraded",)
_SLOT = "86:00.0"  # of GPU 3 of an h100x8
_EDAC = "sys/devices/system/edac/mc/mc0"

FAULTS = (
    # the GPU is not there, or does not answer
    Case("lost", "a GPU falls off the bus", "lost:3", _GPU, goes=How.BOOT,
         words=("GPU 3", _SLOT, "power-cycle")),
    Case("lost2", "two GPUs fall off the bus", "lost:3+lost:5", _GPU * 2, goes=How.BOOT,
         words=("on the bus",)),
    Case("lost3", "three GPUs fall off the bus", _each("lost", range(3)), _GPUS, goes=How.BOOT,
         words=("3 GPUs",)),
    Case("lost8", "all GPUs fall off the bus", _each("lost"), _GPUS, goes=How.BOOT, words=("8 GPUs",)),
    Case("hang", "calls on a GPU never return", "hang:6", _GPU, goes=How.WATCHED, words=("GPU 6",)),
    Case("gone", "a GPU vanishes while watched", "gone:3", _GPU, goes=How.BOOT,
         words=(_SLOT, "no longer here")),
    Case("gone-boot", "a GPU is gone after a boot", "gone:3", _GPU, comes=How.BOOT, goes=How.BOOT,
         words=(_SLOT,)),
    Case("gone8", "all GPUs vanish while watched", _each("gone"), _HOST, goes=How.BOOT,
         words=("no longer here",)),
    # the driver
    Case("no-driver", "the kernel driver is unloaded", "no-driver", _HOST, goes=How.WATCHED,
         words=("modprobe",)),
    Case("mismatch", "the library is newer than the driver", "version-mismatch", _HOST, goes=How.WATCHED),
    Case("no-library", "the library is removed", "no-library", _HOST, comes=How.BOOT, goes=How.BOOT),
    Case("nouveau", "nouveau has the GPUs after a boot", "nouveau", _HOST, comes=How.BOOT, goes=How.BOOT),
    Case("zero-gpus", "the driver starts no GPU", "zero-gpus", _GPUS, comes=How.BOOT, goes=How.BOOT),
    Case("init-hang", "nvmlInit never returns", "init-hang", _HOST, comes=How.BOOT, goes=How.BOOT),
    # Xids
    Case("xid48", "Xid 48, an uncorrectable error", "xid:3:48", _GPU, words=("Xid 48",)),
    Case("xid62", "Xid 62, the micro-controller halted", "xid:3:62", _GPU, words=("Xid 62",)),
    Case("xid74", "Xid 74, an NVLink failed", "xid:3:74", _GPU, words=("Xid 74",)),
    Case("xid79", "Xid 79 in the kernel log", "xid:3:79", _GPU, goes=How.BOOT, words=("Xid 79",)),
    Case("xid94", "Xid 94, a contained error", "xid:3:94", (), _WARN, goes=How.BOOT, words=("Xid 94",)),
    Case("xid95", "Xid 95, an uncontained error", "xid:3:95", _GPU, words=("Xid 95",)),
    Case("xid119", "Xid 119, the GSP does not answer", "xid:3:119", _GPU, goes=How.BOOT, words=("Xid 119",)),
    Case("recovery", "the driver asks for a reset", "recovery:3:gpu_reset", _GPU, words=("reset",)),
    Case("advised", "the driver asks to drain P2P", "recovery:3:drain_p2p", (), _WARN),
    # memory
    Case("ecc", "an uncorrectable memory error", "ecc:3", _GPU),
    Case("remap-wait", "a row waits to be remapped", "row-remap-pending:3", (), _WARN, words=("reset",)),
    Case("remap-failed", "a row could not be remapped", "row-remap-failed:3", _GPU, goes=How.BOOT),
    Case("pages", "a page waits to be retired", "retired-pages:3", (), _WARN, machine="v100x8",
         goes=How.BOOT),
    Case("ecc-off", "ECC is off on one GPU", "ecc-off:3", (), _WARN, goes=How.BOOT),
    # links
    Case("pcie-width", "half of the PCIe lanes", "pcie-width:3", _GPU, goes=How.BOOT),
    Case("pcie-gen", "PCIe too slow under load", "pcie-gen:3", _GPU, well="busy:3", goes=How.WATCHED),
    Case("nvlink", "one NVLink down", "nvlink-down:3:2", _GPU),
    Case("nvlinks", "all NVLinks of a GPU down", "nvlink-down:3", _GPU),
    Case(
        "fabric", "the fabric is not ready", "", _HOST, goes=How.WATCHED,
        more=(
            '[gpu]\n'
            'fabric = { state = "in_progress", status = "success", clique_id = 0, cluster_uuid ='
            ' "00000000-0000-0000-0000-000000000000" }\n'
        ),
    ),
    # heat, power, clocks
    Case("hot", "a GPU at its thermal limit", "hot:5", _GPU, well="busy:5", goes=How.WATCHED,
         words=("GPU 5",)),
    Case("brake", "the power brake of a GPU", "throttle:2", (), _WARN, goes=How.WATCHED),
    Case("brakes", "the power brake of all GPUs", _each("throttle"), (), ("GpusDegraded",), goes=How.WATCHED),
    Case("power-cap", "a lowered power limit", "power-cap:3", (), _WARN, goes=How.WATCHED),
    Case(
        "clock", "a clock stuck low under load", "", _GPU, goes=How.WATCHED,
        more=(
            "[gpus.3]\n"
            "utilization_percent = 98\n"
            "sm_clock_mhz = 210\n"
            "graphics_clock_mhz = 210\n"
            "clocks_event_reasons = []\n"
        ),
    ),
    # settings and processes
    Case("zombie", "a dead process holds a GPU", "zombie:3", _GPU, goes=How.WATCHED),
    Case("compute", "compute mode is prohibited", "compute-prohibited:3", _GPU, goes=How.WATCHED),
    Case("mig", "MIG waits for a reset", "mig-pending:3", (), _WARN),
    # the machine
    Case(
        "edac", "an uncorrectable error of host memory", "", _HOST, goes=How.BOOT,
        more=f'[host]\nextra_files = {{ "{_EDAC}/ue_count" = "1\\n", "{_EDAC}/ce_count" = "0\\n" }}\n',
    ),
    Case(
        "ib", "an InfiniBand port goes down", "", (), ("HostDegraded",), goes=How.WATCHED,
        more='[host]\nextra_files = { "sys/class/infiniband/mlx5_3/ports/1/state" = "1: DOWN\\n",'
        ' "sys/class/infiniband/mlx5_3/ports/1/phys_state" = "3: Disabled\\n" }\n',
    ),
    Case("down", "the service is stopped", "", (), ("GpudiagDown",), stops=True, goes=How.BOOT),
    # two faults are two pages
    Case("both", "one GPU is hot, another one lost", "hot:5+lost:3", _GPU * 2, well="busy:5", goes=How.BOOT),
)  # fmt: skip

HEALTHY = (
    Case("idle", "8x H100, idle"),
    Case("busy", "8x H100, all at work", well=_each("busy")),
    Case("holder", "a notebook holds a GPU", well="idle-holder:2"),
    Case("job-xid", "a job's own Xid 13", well="busy:0+xid:0:13"),
    Case("mig-cut", "an H100 cut into MIG instances", machine="h100-mig"),
    Case("v100", "8x V100", machine="v100x8"),
    Case("a100", "16x A100 in the cloud", machine="a100x16", well="busy:0+busy:9"),
    Case("b200", "8x B200", machine="b200x8", well="busy:0"),
    Case("gb200", "a GB200 tray", machine="gb200x4"),
    Case("l40s", "8x L40S, PCIe alone", machine="l40sx8", well="busy:1"),
    Case("t4", "a T4 in a virtual machine", machine="t4x1", well="busy:0"),
    Case("vgpu", "a share of a GPU (vGPU)", machine="vgpu"),
    Case("geforce", "2x RTX 4090", machine="rtx4090x2", well="busy:1"),
    Case("laptop", "a laptop", machine="laptop", well="busy:0"),
    Case("gb10", "GB10, unified memory", machine="gb10", well="busy:0"),
    Case("wsl", "WSL 2", machine="wsl2-rtx"),
    Case("cpu", "no GPU and no driver", machine="none"),
    Case("old", "the oldest driver for these GPUs", well="old-driver"),
)

CASES = (*FAULTS, *HEALTHY)


def find_cases(words: tuple[str, ...]) -> Iterator[Case]:
    """The cases of those names; all without any."""
    for case in CASES:
        if not words or case.name in words:
            yield case
