"""A machine before its files are rendered: what machine files describe and faults change, each fact once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpudiag.simulate.scenario import SimulatedGpu, SimulatedNvml

NVIDIA_VENDOR_ID = "10de"


@dataclass(frozen=True, slots=True)
class GpuBlueprint:
    """One GPU and how the kernel sees it.

    `on_bus` False: the PCI bus does not show it (WSL, where the GPU is behind /dev/dxg).
    `asleep`: the kernel has suspended it (D3cold).
    `link_lost`: it is on the bus, and its configuration space reads as ones.
    `initialized` False: the driver is bound to it, and could not start it.
    `context_error`: why CUDA cannot start a context on this GPU; None where it can.
    `readings_of_kernel`: what the kernel still knows of a GPU that no longer gives NVML any readings.
    """

    gpu: SimulatedGpu
    pci_class_id: str = "0302"
    kernel_driver: str | None = "nvidia"
    on_bus: bool = True
    asleep: bool = False
    link_lost: bool = False
    initialized: bool = True
    context_error: str | None = None
    cuda_lists_it: bool = True
    readings_of_kernel: Mapping[str, Any] | None = None

    @property
    def kernel_view(self) -> Mapping[str, Any]:
        """The readings that the kernel's own files repeat; they stay when NVML can no longer read the GPU."""
        return self.gpu.readings if self.readings_of_kernel is None else self.readings_of_kernel

    @property
    def bus_id(self) -> str:
        """The PCI address as the model writes it, `dddddddd:bb:dd.f`."""
        return str(self.gpu.readings["bus_id"])

    @property
    def sysfs_address(self) -> str:
        """The PCI address as the kernel writes it, `dddd:bb:dd.f`."""
        return sysfs_address(self.bus_id)

    def with_readings(self, **readings: Any) -> "GpuBlueprint":
        """This GPU with these values; a reading that gets a value is no longer missing."""
        missing = {name: reason for name, reason in self.gpu.missing.items() if name not in readings}
        gpu = replace(self.gpu, readings={**self.gpu.readings, **readings}, missing=missing)
        return replace(self, gpu=gpu)

    def without_readings(self, reason: str, *names: str) -> "GpuBlueprint":
        """This GPU with those readings missing for that reason (a MissingReason word)."""
        readings = {name: value for name, value in self.gpu.readings.items() if name not in names}
        gpu = replace(
            self.gpu, readings=readings, missing={**self.gpu.missing, **dict.fromkeys(names, reason)}
        )
        return replace(self, gpu=gpu)


@dataclass(frozen=True, slots=True)
class PciFunction:
    """A function on the PCI bus that is not a GPU: an NVSwitch, a network card."""

    address: str  # dddd:bb:dd.f
    vendor_id: str
    device_id: str
    class_id: str
    driver: str | None
    numa_node: int = -1
    link_generation: int | None = None  # of PCIe; None: the kernel shows no link
    link_width: int | None = None


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface; addresses are written `10.0.0.7/16`; IPv4 and IPv6 alike."""

    name: str
    up: bool = True
    loopback: bool = False
    mtu: int = 1500
    speed_mbit_per_second: int | None = None
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine around the GPUs. Sizes are in KiB, as /proc/meminfo writes them."""

    hostname: str
    kernel_release: str
    operating_system: str  # PRETTY_NAME of /etc/os-release
    processor: str
    processor_architecture: str
    logical_processors: int
    memory_total_kib: int
    memory_available_kib: int
    shared_memory_kib: int
    boot_id: str
    uptime_seconds: float
    sockets: int = 1
    virtual_machine: bool = False
    kernel_modules: tuple[str, ...] = ()
    kernel_driver_version: str | None = None  # None: /proc/driver/nvidia is not there
    kernel_driver_flavor: str = "open"
    device_nodes: tuple[str, ...] = ()  # beside /dev/nvidiaN
    pci_functions: tuple[PciFunction, ...] = ()
    # Where functions are below /sys/devices: `pci0000:50/0000:50:01.0/0000:53:00.0`. One that is not listed
    # has a root port of its own (a GPU) or is on its own root (others).
    pci_paths: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    infiniband_gbit_per_second: Mapping[str, int] = field(default_factory=dict)  # device -> rate
    container_runtime: str | None = None
    container_id: str | None = None
    cgroup: str = "0::/user.slice/user-1000.slice/session-4.scope"  # of gpudiag itself
    extra_files: Mapping[str, str] = field(default_factory=dict)
    absent_files: tuple[str, ...] = ()  # what this machine does not show; a folder means all that is in it


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process that /proc describes; `state` is its letter there: R, S, D, Z."""

    pid: int
    user: str
    uid: int
    argv: tuple[str, ...]
    age_seconds: float
    state: str = "S"
    container_id: str | None = None
    open_nodes: tuple[str, ...] = ()  # device nodes that it holds open
    slurm_job_id: int | None = None
    parent_pid: int = 1
    resident_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line of the kernel log, and how long ago it was logged."""

    age_seconds: float
    text: str
    level: int = 6  # of syslog: 3 error, 4 warning, 6 informational


@dataclass(frozen=True, slots=True)
class LoggedLines:
    """A machine file's entry for the kernel log: `times` lines, the first of them `age_seconds` ago."""

    age_seconds: float
    text: str
    gpu: int = 0  # whose address `{gpu}` in the text stands for, by NVML index
    times: int = 1
    every_seconds: float = 0.0
    level: int = 3


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The torch of the job's Python; `cuda_error`: why CUDA cannot start; `hangs`: it never returns."""

    version: str
    python: str
    cuda_runtime_version: str | None = None  # None: a CPU build
    architectures: tuple[str, ...] = ()
    nccl_version: str | None = None
    nccl_built_version: str | None = None  # None: the same
    nccl_library: str | None = None
    absent: bool = False
    cuda_error: str | None = None
    hangs: bool = False
    reordered: bool = False  # CUDA lists the GPUs in another order than NVML


@dataclass(frozen=True, slots=True)
class Blueprint:
    """One whole machine; `gpus` in NVML's order, those hidden from NVML among them."""

    name: str
    description: str
    sources: tuple[str, ...]
    nvml: SimulatedNvml
    gpus: tuple[GpuBlueprint, ...]
    host: HostFacts
    torch: TorchBuild
    environment: Mapping[str, str] = field(default_factory=dict)
    nvidia_smi_present: bool = True
    kernel_log: tuple[KernelLine, ...] = ()
    processes: tuple[HostProcess, ...] = ()
    jobs: tuple[
        Mapping[str, Any], ...
    ] = ()  # what a look at the machine's jobs from outside gives: encoded `Job`s

    def listed(self) -> tuple[GpuBlueprint, ...]:
        """The GPUs that NVML lists, in its order: position is the NVML index."""
        return tuple(gpu for gpu in self.gpus if gpu.gpu.visible)

    def change_gpu(self, index: int, change: Callable[[GpuBlueprint], GpuBlueprint]) -> "Blueprint":
        """This machine with the GPU of that NVML index changed."""
        target = self.listed()[index]
        return self.change_gpus(lambda gpu: change(gpu) if gpu is target else gpu)

    def change_gpus(self, change: Callable[[GpuBlueprint], GpuBlueprint]) -> "Blueprint":
        """This machine with every GPU changed, those hidden from NVML included."""
        return replace(self, gpus=tuple(change(gpu) for gpu in self.gpus))

    def log(self, *lines: KernelLine) -> "Blueprint":
        """This machine with more lines in its kernel log."""
        return replace(self, kernel_log=(*self.kernel_log, *lines))


def sysfs_address(bus_id: str) -> str:
    """`0000:5d:00.0` for `00000000:5d:00.0`: the kernel writes PCI domains with four digits."""
    domain, rest = bus_id.split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"
