"""What a machine's GPUs look like at one moment: devices, their readings, and the source of each.

Units are in the field names: bytes, watts, MHz, degrees Celsius, per cent (0 to 100), seconds.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from typing import ClassVar

from gpudiag.compat import StrEnum
from gpudiag.model.codec import FLATTEN, noun
from gpudiag.model.host import Machine
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading, Scalar


class SourceState(StrEnum):
    """How a source answered."""

    OK = "ok"
    NO_DEVICES = "no_devices"
    LIBRARY_ABSENT = "library_absent"
    DRIVER_NOT_LOADED = "driver_not_loaded"
    VERSION_MISMATCH = "version_mismatch"
    NO_PERMISSION = "no_permission"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    NOT_ASKED = "not_asked"


# Those that list GPUs; the host only lists what the kernel knows of them.
SOURCES_OF_GPUS = ("nvml", "gputil", "torch")


@noun
class SourceStatus:
    """How one source (nvml, gputil, torch, host) answered, and in how many seconds."""

    name: str
    state: SourceState
    reason: str | None = None  # the source's own words, with their meaning
    seconds: Reading[float] = NOT_ASKED
    device_count: Reading[int] = NOT_ASKED


@noun
class DeviceId:
    """Who a GPU is: the UUID is its identity, the indices are for people.

    `bus_id` is `dddddddd:bb:dd.f` in lower case; `nvml_index` and `cuda_ordinal` differ if
    CUDA_VISIBLE_DEVICES or CUDA_DEVICE_ORDER is set so.
    """

    uuid: Reading[str]
    bus_id: Reading[str]
    nvml_index: Reading[int]
    cuda_ordinal: Reading[int] = NOT_ASKED


FATAL_CALL = "this call ends the process that makes it"  # how the words of such a failed call begin


@noun
class FailedCall:
    """A call that NVML answered with an error, where it should have answered.

    `nvml_index` is None where it is about no GPU.
    """

    function: str  # as in nvml.h; with `, field 82` behind nvmlDeviceGetFieldValues
    nvml_index: int | None
    words: str  # NVML's own, with the code

    @property
    def is_fatal(self) -> bool:
        """Whether the call ends the process that makes it, and was left out for that."""
        return self.words.startswith(FATAL_CALL)


@noun
class ParentProcess:
    """A process that started one that uses a GPU, or that started its parent."""

    pid: int
    command: str


@noun
class GpuProcess:
    """A process that holds memory on a GPU, as NVML names it and /proc describes it.

    In a container NVML reports the host's pid, which /proc does not know: `visible` is False then
    and the fields from /proc are missing.
    """

    pid: int
    kind: str  # compute, graphics or mps
    memory_used_bytes: Reading[int]
    visible: bool
    user: Reading[str]
    command: Reading[str]
    container_id: Reading[str]
    started_at: Reading[datetime]
    gpu_instance_id: Reading[int] = NOT_ASKED
    compute_instance_id: Reading[int] = NOT_ASKED
    state: Reading[str] = NOT_ASKED  # the letter of /proc/PID/stat: R, S, D, Z, T
    slurm_job_id: Reading[int] = NOT_ASKED
    # Read again and again only (the sampler), as shares and trees are of no use to a single look.
    parents: Reading[tuple[ParentProcess, ...]] = NOT_ASKED  # the nearest first, without the machine's own
    sm_utilization_percent: Reading[int] = NOT_ASKED  # of this GPU, in the last second that it worked
    processor_percent: Reading[float] = NOT_ASKED  # of one processor, between the last two looks
    resident_bytes: Reading[int] = NOT_ASKED  # memory of the host


@noun
class MigInstance:
    """One MIG compute instance of a GPU, with a UUID and memory of its own."""

    uuid: Reading[str]
    name: Reading[str]
    gpu_instance_id: Reading[int]
    compute_instance_id: Reading[int]
    memory_total_bytes: Reading[int]
    memory_used_bytes: Reading[int]
    memory_free_bytes: Reading[int]
    # Of the whole GPU instance, as in Device.
    graphics_activity_percent: Reading[float] = NOT_ASKED
    sm_activity_percent: Reading[float] = NOT_ASKED
    sm_occupancy_percent: Reading[float] = NOT_ASKED
    tensor_activity_percent: Reading[float] = NOT_ASKED
    dram_activity_percent: Reading[float] = NOT_ASKED
    fp64_activity_percent: Reading[float] = NOT_ASKED
    fp32_activity_percent: Reading[float] = NOT_ASKED
    fp16_activity_percent: Reading[float] = NOT_ASKED
    pcie_transmitted_bytes_per_second: Reading[float] = NOT_ASKED
    pcie_received_bytes_per_second: Reading[float] = NOT_ASKED
    free: Reading[bool] = NOT_ASKED  # as in Device


@noun
class NvLink:
    """One NVLink of a GPU: whether it is up, what it leads to, and its error counters."""

    link: int
    active: Reading[bool]
    remote_bus_id: Reading[str]
    crc_flit_errors: Reading[int]
    crc_data_errors: Reading[int]
    replay_errors: Reading[int]
    recovery_errors: Reading[int]
    recovery_failures: Reading[int] = NOT_ASKED  # NVLink 5, as the next
    bit_error_rate: Reading[float] = NOT_ASKED  # after correction


@noun
class EccLocation:
    """ECC error counts of one place in a GPU, such as `dram` or `sram`."""

    location: str
    corrected_volatile: Reading[int]
    uncorrected_volatile: Reading[int]
    corrected_aggregate: Reading[int]
    uncorrected_aggregate: Reading[int]


@noun
class RowRemapHistogram:
    """How many memory banks have all, most, some, few or none of their spare rows left."""

    max_banks: int
    high_banks: int
    partial_banks: int
    low_banks: int
    none_banks: int


@noun
class Device:
    """One physical GPU: its identity and every reading, each a value or the reason for none.

    `responding` is True, or the reason why the whole GPU gave no readings (DEVICE_LOST,
    RESET_REQUIRED, TIMED_OUT, NOT_ASKED for one that is asleep); such a GPU stays a row with its other fields
    missing for the same reason.
    """

    id: DeviceId = field(metadata=FLATTEN)
    responding: Reading[bool]
    name: Reading[str]
    serial: Reading[str]
    vbios_version: Reading[str]
    board_part_number: Reading[str]
    architecture: Reading[str]  # kepler ... hopper, blackwell
    compute_capability: Reading[str]  # "9.0"
    memory_kind: Reading[str]  # dedicated or unified
    numa_node: Reading[int]
    mig_mode: Reading[str]  # enabled or disabled, as the next two
    mig_mode_pending: Reading[str]
    mig_instances: Reading[tuple[MigInstance, ...]]
    memory_total_bytes: Reading[int]
    memory_used_bytes: Reading[int]
    memory_free_bytes: Reading[int]
    memory_reserved_bytes: Reading[int]
    utilization_percent: Reading[int]
    memory_utilization_percent: Reading[int]  # share of time in which memory was read or written
    temperature_celsius: Reading[int]
    memory_temperature_celsius: Reading[int]
    temperature_margin_celsius: Reading[int]  # to the thermal limit ("T.Limit")
    temperature_slowdown_celsius: Reading[int]
    temperature_shutdown_celsius: Reading[int]
    power_draw_watts: Reading[float]
    power_limit_enforced_watts: Reading[float]
    power_limit_watts: Reading[float]
    power_limit_default_watts: Reading[float]
    power_limit_min_watts: Reading[float]
    power_limit_max_watts: Reading[float]
    graphics_clock_mhz: Reading[int]
    sm_clock_mhz: Reading[int]
    memory_clock_mhz: Reading[int]
    video_clock_mhz: Reading[int]
    graphics_clock_max_mhz: Reading[int]
    sm_clock_max_mhz: Reading[int]
    memory_clock_max_mhz: Reading[int]
    graphics_clock_application_mhz: Reading[int]
    memory_clock_application_mhz: Reading[int]
    pstate: Reading[int]  # 0 (fastest) to 15
    clocks_event_reasons: Reading[tuple[str, ...]]
    ecc_mode: Reading[str]  # enabled or disabled, as the next
    ecc_mode_pending: Reading[str]
    ecc_corrected_volatile: Reading[int]
    ecc_uncorrected_volatile: Reading[int]
    ecc_corrected_aggregate: Reading[int]
    ecc_uncorrected_aggregate: Reading[int]
    ecc_locations: Reading[tuple[EccLocation, ...]]
    row_remap_correctable: Reading[int]
    row_remap_uncorrectable: Reading[int]
    row_remap_pending: Reading[bool]
    row_remap_failed: Reading[bool]
    row_remap_histogram: Reading[RowRemapHistogram]
    retired_pages_corrected: Reading[int]
    retired_pages_uncorrected: Reading[int]
    page_retirement_pending: Reading[bool]
    pcie_generation: Reading[int]
    pcie_generation_gpu_max: Reading[int]
    pcie_generation_slot_max: Reading[int]
    pcie_width: Reading[int]
    pcie_width_gpu_max: Reading[int]
    pcie_width_slot_max: Reading[int]
    pcie_replay_count: Reading[int]
    nvlinks: Reading[tuple[NvLink, ...]]
    recovery_action: Reading[str]  # none, gpu_reset, node_reboot, drain_p2p, drain_and_reset ...
    fan_speed_percent: Reading[int]
    persistence_mode: Reading[str]  # enabled or disabled
    compute_mode: Reading[str]  # default, exclusive_process, prohibited
    processes: Reading[tuple[GpuProcess, ...]]
    pci_subsystem_id: Reading[str] = NOT_ASKED  # 134f10de: the board, its maker last; alike on equal boards
    brand: Reading[str] = NOT_ASKED  # geforce, nvidia, tesla ...: the product line, by the driver
    memory_bus_width_bits: Reading[int] = NOT_ASKED
    cuda_cores: Reading[int] = NOT_ASKED
    gsp_firmware_version: Reading[str] = NOT_ASKED
    gsp_firmware_mode: Reading[str] = NOT_ASKED  # enabled or disabled, as the next
    gsp_firmware_mode_default: Reading[str] = NOT_ASKED
    inforom_version: Reading[str] = NOT_ASKED
    inforom_valid: Reading[bool] = NOT_ASKED
    ecc_sram_threshold_exceeded: Reading[bool] = NOT_ASKED  # the driver's own signal to replace the GPU
    memory_unrepairable: Reading[bool] = NOT_ASKED
    memory_channel_repair_pending: Reading[bool] = NOT_ASKED
    tpc_repair_pending: Reading[bool] = NOT_ASKED
    temperature_margin_slowdown_celsius: Reading[int] = NOT_ASKED  # the margin at which clocks are cut
    temperature_gpu_max_celsius: Reading[int] = NOT_ASKED
    temperature_memory_max_celsius: Reading[int] = NOT_ASKED
    graphics_clock_application_default_mhz: Reading[int] = NOT_ASKED
    memory_clock_application_default_mhz: Reading[int] = NOT_ASKED
    throttle_seconds: Reading[ThrottleSeconds] = NOT_ASKED
    pcie_errors: Reading[PcieErrorCounts] = NOT_ASKED
    nvlink_bytes_per_second: Reading[float] = NOT_ASKED  # of one link, in one direction
    fabric: Reading[FabricState] = NOT_ASKED
    peers: Reading[tuple[PeerAccess, ...]] = NOT_ASKED
    encoder_utilization_percent: Reading[int] = NOT_ASKED
    decoder_utilization_percent: Reading[int] = NOT_ASKED
    energy_joules: Reading[float] = NOT_ASKED  # since the driver was loaded
    nvlink_transmitted_bytes: Reading[int] = (
        NOT_ASKED  # data over all links, without headers, as the next two
    )
    nvlink_received_bytes: Reading[int] = NOT_ASKED
    nvlink_throughput_bytes_per_second: Reading[float] = NOT_ASKED  # both ways, between the last two looks
    vgpu_license: Reading[str] = NOT_ASKED  # not_needed, unlicensed or licensed
    # What happened between the last two looks, as NVML's GPM counts it (Hopper and later); a single look has
    # none.
    graphics_activity_percent: Reading[float] = NOT_ASKED
    sm_activity_percent: Reading[float] = NOT_ASKED
    sm_occupancy_percent: Reading[float] = NOT_ASKED
    tensor_activity_percent: Reading[float] = NOT_ASKED
    dram_activity_percent: Reading[float] = NOT_ASKED
    fp64_activity_percent: Reading[float] = NOT_ASKED
    fp32_activity_percent: Reading[float] = NOT_ASKED
    fp16_activity_percent: Reading[float] = NOT_ASKED
    pcie_transmitted_bytes_per_second: Reading[float] = NOT_ASKED
    pcie_received_bytes_per_second: Reading[float] = NOT_ASKED
    nvlink_transmitted_bytes_per_second: Reading[float] = NOT_ASKED
    nvlink_received_bytes_per_second: Reading[float] = NOT_ASKED
    # Whether work may start on it, or on an instance of it: judged by the checks, and only where `list
    # --free` asks.
    free: Reading[bool] = NOT_ASKED

    @property
    def is_asleep(self) -> bool:
        """Whether the GPU was not asked, because the kernel has suspended it."""
        return isinstance(self.responding, Missing) and self.responding.reason is MissingReason.NOT_ASKED


@noun
class DeviceView:
    """One GPU as one source shows it, in that source's own order.

    `context_starts` is torch's: True, or the reason why CUDA starts no context on this GPU.
    """

    source: str
    source_index: int
    uuid: Reading[str]
    bus_id: Reading[str]
    name: Reading[str]
    memory_total_bytes: Reading[int]
    memory_used_bytes: Reading[int]
    memory_free_bytes: Reading[int]
    utilization_percent: Reading[int]
    driver_version: Reading[str]
    context_starts: Reading[bool] = NOT_ASKED


@noun
class TorchFacts:
    """What torch is and sees: its build, how many GPUs it counts, whether a context really starts."""

    version: str
    python: str  # the interpreter that was asked
    cuda_runtime_version: Reading[str]  # missing on a CPU build
    architectures: Reading[tuple[str, ...]]
    nccl_version: Reading[str]  # of the library that torch calls
    nccl_available: bool
    gloo_available: bool
    cuda_available: Reading[bool]
    device_count: Reading[int]
    nvml_device_count: Reading[int]  # what torch counts through NVML, without a context
    context_starts: Reading[bool]
    nccl_built_version: Reading[str] = NOT_ASKED  # what torch was built with
    nccl_library: Reading[str] = NOT_ASKED  # the file that torch calls


@noun
class Disagreement:
    """One fact on which the sources differ: the value of each, and the likely reason.

    `expected` is True where the reason is a setting that does just this (CUDA_VISIBLE_DEVICES, a
    CPU build of torch); False where nothing explains it.
    """

    field: str  # count, order, memory_total_bytes, name, driver_version
    values: dict[str, Scalar | None]
    reason: str
    expected: bool
    uuid: str | None = None  # the GPU it is about; None for the whole machine


@noun
class Snapshot:
    """`gpudiag.snapshot/1`: one machine's GPUs at one moment, three sources side by side.

    `devices` counts physical GPUs as NVML numbers them; `views` are the same GPUs as each source
    shows them; `disagreements` are the differences, each with its likely reason.
    """

    SCHEMA: ClassVar[str] = "gpudiag.snapshot/1"

    host: str
    taken_at: datetime
    simulated: str | None  # the scenario's name; None on a real machine
    driver_version: Reading[str]
    cuda_driver_version: Reading[str]  # the newest CUDA that the driver can run
    nvml_version: Reading[str]
    sources: tuple[SourceStatus, ...]
    devices: tuple[Device, ...]
    views: tuple[DeviceView, ...]
    disagreements: tuple[Disagreement, ...]
    torch: Reading[TorchFacts]
    machine: Machine
    kernel_log: Reading[tuple[KernelEvent, ...]] = NOT_ASKED  # of this boot, oldest first
    confidential_computing: Reading[str] = (
        NOT_ASKED  # enabled or disabled: whether copies to GPUs are encrypted
    )
    failed_calls: tuple[FailedCall, ...] = ()  # of NVML; "not supported" and "no permission" are answers

    def source(self, name: str) -> SourceStatus:
        """The status of the source of that name; not_asked where nobody asked it."""
        for status in self.sources:
            if status.name == name:
                return status
        return SourceStatus(name, SourceState.NOT_ASKED)


@noun
class ThrottleSeconds:
    """For how long, since the driver was loaded, something kept the clocks down (nvmlViolationTime_t)."""

    power: Reading[float]
    thermal: Reading[float]
    sync_boost: Reading[float]
    board_limit: Reading[float]
    reliability: Reading[float]


@noun
class PcieErrorCounts:
    """PCIe errors that the GPU's end of the link has counted, since the driver was loaded."""

    correctable: Reading[int]
    nonfatal: Reading[int]
    fatal: Reading[int]
    bad_tlp: Reading[int]
    bad_dllp: Reading[int]
    naks_received: Reading[int]
    naks_sent: Reading[int]


@noun
class FabricState:
    """How far a GPU's registration with the NVLink fabric is, and the health that the fabric reports.

    `state` is not_started, in_progress or completed; `status` is `success` or NVML's error. `health` is
    healthy, unhealthy or limited_capacity; `faults` are the words of the health mask that are true.
    """

    state: str
    status: str
    clique_id: Reading[int]
    cluster_uuid: Reading[str]
    health: Reading[str]
    faults: Reading[tuple[str, ...]]


@noun
class PeerAccess:
    """What lies between two GPUs, and whether one may read the other's memory.

    `path` is the nearest common ancestor: board, pcie_switch, pcie_switches, host_bridge, numa_node or
    system. `read` and `nvlink` are NVML's words: ok, chipset_not_supported, gpu_not_supported,
    topology_not_supported, disabled, not_supported or unknown.
    """

    bus_id: str  # of the other GPU
    path: Reading[str]
    read: Reading[str]
    nvlink: Reading[str]
