"""Cases of the checks that look at GPUs: discovery, memory, heat, clocks, power, modes, users."""

from dataclasses import replace

from gpudiag.model.device import (
    Disagreement,
    EccLocation,
    FailedCall,
    GpuProcess,
    RowRemapHistogram,
    SourceState,
    SourceStatus,
    ThrottleSeconds,
)
from gpudiag.model.plan import FreeMemory
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.reading_names import name_state
from tests.scenarios.situations import case, gpu, gpus, machine, now, part, top, without_gpu

MIB = 1024**2
ABSENT = Missing(MissingReason.SOURCE_ABSENT)
NOT_SUPPORTED = Missing(MissingReason.NOT_SUPPORTED)
LOST = Missing(MissingReason.DEVICE_LOST, "GPU is lost (NVML 15)")
RESET_FIRST = Missing(MissingReason.RESET_REQUIRED, "GPU requires reset (NVML 16)")
LATE = Missing(MissingReason.TIMED_OUT, "no answer from nvmlDeviceGetName within 5.0 s")
ATTACHING = Missing(MissingReason.ATTACHING, "no handle yet after 5.0 s")
BROKEN = Missing(MissingReason.ERROR, "Unknown Error (NVML 999)")


def process(pid: int = 4242, **facts: object) -> GpuProcess:
    values = {
        "kind": "compute",
        "memory_used_bytes": 66 * 1024 * MIB,
        "visible": True,
        "user": "ann",
        "command": "python train.py",
        "container_id": ABSENT,
        "started_at": ABSENT,
        "state": "R",
    }
    return GpuProcess(pid=pid, **{**values, **facts})


def source(status_of: SourceState, seconds: float = 0.01):
    """NVML in another state."""

    def change(snapshot):
        others = tuple(status for status in snapshot.sources if status.name != "nvml")
        status = SourceStatus("nvml", status_of, f"NVML: {name_state(status_of)}", seconds)
        return top(sources=(status, *others))(snapshot)

    return change


def unlisted(index: int):
    """A GPU on the bus that NVML does not list."""
    return lambda snapshot: top(
        devices=tuple(device for device in snapshot.devices if device.id.nvml_index != index)
    )(snapshot)


def differing(*, explained: bool):
    """NVML and torch count other GPUs, with or without a setting that explains it."""
    item = Disagreement("count", {"nvml": 8, "torch": 6}, "torch sees two GPUs fewer", expected=explained)
    return top(disagreements=(item,))


def bound_to(index: int, driver: str):
    """One GPU on the bus that another kernel driver holds."""

    def change(snapshot):
        bus_id = snapshot.devices[index].id.bus_id
        pci = tuple(
            replace(one, driver=driver) if one.bus_id == bus_id else one
            for one in snapshot.machine.pci_devices
        )
        return machine(pci_devices=pci)(snapshot)

    return change


def sram(count: int):
    return (EccLocation("sram", 0, 0, 0, count),)


def throttled(**seconds: float) -> ThrottleSeconds:
    values = {"power": 10.0, "thermal": 0.0, "sync_boost": 0.0, "board_limit": 0.0, "reliability": 0.0}
    return ThrottleSeconds(**{**values, **seconds})


def banks(**counts: int) -> RowRemapHistogram:
    return RowRemapHistogram(
        **{**dict.fromkeys(RowRemapHistogram.__dataclass_fields__, 0), "max_banks": 2558, **counts}
    )


def holding(held_bytes: int, *processes: GpuProcess) -> dict[str, object]:
    """The readings of an H100 on which processes hold that much."""
    return {
        "memory_used_bytes": held_bytes,
        "memory_free_bytes": 81080 * MIB - held_bytes,
        "processes": processes,
    }


NO_VALUE = Missing(MissingReason.ERROR, "Unknown Error (NVML 999)")
GIB_HELD, FEW_HELD = 66 * 1024 * MIB, 7 * 1024 * MIB
BUSY = gpus(utilization_percent=98, clocks_event_reasons=(), sm_clock_mhz=1800, power_draw_watts=650.0)
ONE_CAPPED = gpu(
    0, utilization_percent=100, clocks_event_reasons=("sw_power_cap",), sm_clock_mhz=1000, pcie_generation=4
)
STUCK = {"utilization_percent": 99, "memory_utilization_percent": 1, "power_draw_watts": 120.0}

DISCOVERY = (
    *(
        case("source.nvml", f"nvml.{word.value}")(now(source(word)), now(source(SourceState.OK)))
        for word in (
            SourceState.LIBRARY_ABSENT,
            SourceState.DRIVER_NOT_LOADED,
            SourceState.VERSION_MISMATCH,
            SourceState.NO_PERMISSION,
            SourceState.TIMED_OUT,
            SourceState.FAILED,
        )
    ),
    case("source.nvml_calls", "nvml.call_failed")(
        now(top(failed_calls=(FailedCall("nvmlDeviceGetSerial", 3, "Unknown Error (NVML 999)"),))),
        now(
            gpu(3, responding=LOST),
            top(failed_calls=(FailedCall("nvmlDeviceGetSerial", 3, "Unknown Error (NVML 999)"),)),
        ),
    ),
    case("source.nvml_calls", "nvml.value_not_read")(
        now(
            gpu(3, fan_speed_percent=NO_VALUE),
            top(failed_calls=(FailedCall("nvmlDeviceGetFanSpeed", 3, "Unknown Error (NVML 999)"),)),
        ),
        now(
            gpu(3, responding=LOST),
            top(failed_calls=(FailedCall("nvmlDeviceGetFanSpeed", 3, "Unknown Error (NVML 999)"),)),
        ),
    ),
    case("vgpu.license", "vgpu.unlicensed")(
        now(gpu(3, vgpu_license="unlicensed")), now(gpu(3, vgpu_license="licensed"))
    ),
    case("gpu.lost", "gpu.lost")(now(gpu(3, responding=LOST)), now(gpu(3, responding=LATE))),
    case("gpu.lost", "gpu.recovery_needed")(
        now(gpu(3, recovery_action="gpu_reset")), now(gpu(3, recovery_action="none"))
    ),
    case("gpu.lost", "gpu.recovery_advised")(
        now(gpu(3, recovery_action="drain_p2p")), now(gpu(3, recovery_action="none"))
    ),
    case("gpu.lost", "gpu.recovery_needed")(
        now(gpu(3, responding=RESET_FIRST)), now(gpu(3, responding=LATE))
    ),
    case("gpu.lost", "gpu.recovery_needed")(
        now(gpu(3, recovery_action="unknown_9")), now(gpu(3, recovery_action=NOT_SUPPORTED))
    ),
    case("driver.values", "driver.unknown_value")(
        now(part(3, "fabric", health="unknown_4")), now(gpu(3, architecture="unknown_15", brand="unknown_20"))
    ),
    case("gpu.hung", "gpu.hung")(now(gpu(3, responding=LATE)), now(gpu(3, responding=LOST))),
    case("gpu.hung", "gpu.attaching")(now(gpu(3, responding=ATTACHING)), now(gpu(3, responding=LATE))),
    case("gpu.hung", "gpu.not_read")(now(gpu(3, responding=BROKEN)), now(gpu(3, responding=LATE))),
    case("gpu.count", "gpu.count")(
        now(without_gpu(3), expected={"expected_gpus": 8}), now(without_gpu(3), expected={"expected_gpus": 7})
    ),
    case("gpu.count", "gpu.missing")(now(unlisted(3)), now(without_gpu(3))),
    case("source.agreement", "source.disagreement")(
        now(differing(explained=False)), now(differing(explained=True))
    ),
    case("driver.nouveau", "driver.nouveau_loaded")(
        now(machine(kernel_modules=("nvidia", "nouveau"))), now(machine(kernel_modules=("nvidia",)))
    ),
    case("driver.nouveau", "driver.nouveau_bound")(now(bound_to(3, "nouveau")), now(bound_to(3, "vfio-pci"))),
    case("driver.version", "driver.unexpected_version")(
        now(expected={"expected_driver": "570"}), now(expected={"expected_driver": "580"})
    ),
    case("gpu.model", "gpu.model_differs")(
        now(gpu(3, name="NVIDIA H100 PCIe")), now(gpu(3, name="NVIDIA T400 4GB", brand="quadro"))
    ),
    case("driver.firmware", "driver.vbios_differs")(
        now(gpu(3, vbios_version="96.00.74.00.01")), now(gpus(vbios_version="96.00.74.00.01"))
    ),
    case("driver.firmware", "driver.inforom_differs")(
        now(gpu(3, inforom_version="G520.0200.00.04")), now(gpus(inforom_version="G520.0200.00.04"))
    ),
    case("driver.firmware", "driver.inforom_corrupted")(
        now(gpu(3, inforom_valid=False)), now(gpu(3, inforom_valid=NOT_SUPPORTED))
    ),
    case("driver.firmware", "driver.gsp_off")(
        now(gpu(3, gsp_firmware_mode="disabled")),
        now(gpu(3, gsp_firmware_mode="disabled", gsp_firmware_mode_default="disabled")),
    ),
    case("driver.persistence", "driver.persistence_off")(
        now(gpus(persistence_mode="disabled"), source(SourceState.OK, seconds=2.5)),
        now(gpus(persistence_mode="disabled"), source(SourceState.OK, seconds=0.1)),
    ),
    case("machine.gpus", "gpu.gone")(
        now(without_gpu(5), recorded=()), now(without_gpu(5), recorded=(without_gpu(5),))
    ),
    case("machine.expected", "machine.gpus_differ")(
        now(without_gpu(5), named=(top(host="a9"),)),
        now(without_gpu(5), named=(top(host="a9"), without_gpu(5))),
    ),
    case("machine.expected", "machine.differs")(
        now(gpus(vbios_version="96.00.74.00.01"), named=(top(host="a9"),)), now(named=(top(host="a9"),))
    ),
    case("machine.settings", "machine.changed")(
        now(top(driver_version="580.126.09"), recorded=()),
        now(top(driver_version="580.126.09"), recorded=(top(driver_version="580.126.09"),)),
    ),
)

MEMORY = (
    case("memory.size", "memory.too_small")(
        now(gpu(3, memory_total_bytes=65536 * MIB)), now(gpu(3, memory_total_bytes=81200 * MIB))
    ),
    case("memory.size", "memory.too_small")(
        now(gpus(memory_total_bytes=65536 * MIB)), now(gpus(memory_total_bytes=76000 * MIB))
    ),
    case("memory.size", "memory.too_small", base="t4x1")(
        now(gpu(0, memory_total_bytes=7680 * MIB)), now(gpu(0, memory_total_bytes=15109 * MIB))
    ),
    case("ecc.uncorrected", "ecc.uncorrected_volatile")(
        now(gpu(3, ecc_uncorrected_volatile=1, ecc_uncorrected_aggregate=1)),
        now(gpu(3, ecc_corrected_volatile=900)),
    ),
    case("ecc.uncorrected", "ecc.uncorrected_aggregate")(
        now(gpu(3, ecc_uncorrected_aggregate=2)), now(gpu(3, ecc_corrected_aggregate=2))
    ),
    case("ecc.uncorrected", "ecc.uncorrected_rising")(
        now(
            gpu(3, ecc_uncorrected_aggregate=3, row_remap_pending=True),
            before=(gpu(3, ecc_uncorrected_aggregate=2),),
        ),
        # Reset since: none in this life of the driver, and the row was replaced.
        now(gpu(3, ecc_uncorrected_aggregate=3), before=(gpu(3, ecc_uncorrected_aggregate=2),)),
    ),
    case("ecc.sram", "ecc.sram_threshold_exceeded")(
        now(gpu(3, ecc_sram_threshold_exceeded=True)), now(gpu(3, ecc_sram_threshold_exceeded=False))
    ),
    case("ecc.sram", "ecc.sram_uncorrected")(
        now(gpu(3, ecc_locations=sram(5))), now(gpu(3, ecc_locations=sram(4)))
    ),
    case("ecc.mode", "ecc.disabled")(now(gpu(3, ecc_mode="disabled", ecc_mode_pending="disabled")), now()),
    case("ecc.mode", "ecc.mode_pending")(
        now(gpu(3, ecc_mode_pending="disabled")), now(gpus(ecc_mode_pending="enabled"))
    ),
    case("ecc.corrected_rate", "ecc.corrected_rate")(
        now(gpu(3, ecc_corrected_volatile=500), before=(), seconds=3600),
        now(gpus(ecc_corrected_volatile=500), before=(), seconds=3600),
    ),
    case("memory.row_remap", "memory.row_remap_failed")(
        now(gpu(3, row_remap_failed=True)), now(gpu(3, row_remap_correctable=1))
    ),
    case("memory.row_remap", "memory.row_remap_pending")(
        now(gpu(3, row_remap_pending=True)), now(gpu(3, row_remap_uncorrectable=2))
    ),
    case("memory.row_remap", "memory.row_remap_spares_gone")(
        now(gpu(3, row_remap_histogram=banks(none_banks=1))),
        now(gpu(3, row_remap_histogram=banks(partial_banks=2))),
    ),
    case("memory.row_remap", "memory.row_remap_spares_low")(
        now(gpu(3, row_remap_histogram=banks(low_banks=1))),
        now(gpu(3, row_remap_histogram=banks(high_banks=2))),
    ),
    case("memory.row_remap", "memory.row_remap_count")(
        now(gpu(3, row_remap_uncorrectable=512)), now(gpu(3, row_remap_uncorrectable=511))
    ),
    case("memory.page_retirement", "memory.page_retirement_full", base="t4x1")(
        now(gpu(0, retired_pages_corrected=40, retired_pages_uncorrected=23)),
        now(gpu(0, retired_pages_corrected=40, retired_pages_uncorrected=22)),
    ),
    case("memory.page_retirement", "memory.page_retirement_rising", base="t4x1")(
        now(gpu(0, retired_pages_uncorrected=17), before=(gpu(0, retired_pages_uncorrected=16),)),
        now(gpu(0, retired_pages_uncorrected=15), before=(gpu(0, retired_pages_uncorrected=14),)),
    ),
    case("memory.page_retirement", "memory.page_retirement_pending", base="t4x1")(
        now(gpu(0, page_retirement_pending=True)), now(gpu(0, retired_pages_corrected=3))
    ),
    case("memory.repair", "memory.unrepairable")(
        now(gpu(3, memory_unrepairable=True)), now(gpu(3, memory_unrepairable=False))
    ),
    case("memory.repair", "memory.repair_pending")(
        now(gpu(3, tpc_repair_pending=True)), now(gpu(3, tpc_repair_pending=False))
    ),
)

PACE = (
    case("temperature.gpu", "temperature.gpu_too_hot")(
        now(gpu(3, temperature_margin_celsius=-2)), now(gpu(3, temperature_margin_celsius=3))
    ),
    case("temperature.gpu", "temperature.gpu_nearly_too_hot", base="t4x1")(
        now(gpu(0, temperature_celsius=89)), now(gpu(0, temperature_celsius=88))
    ),
    case("temperature.memory", "temperature.memory_too_hot", base="a100x8")(
        now(gpu(3, memory_temperature_celsius=96)), now(gpu(3, memory_temperature_celsius=95))
    ),
    case("temperature.memory", "temperature.memory_too_hot")(
        now(gpu(3, memory_temperature_celsius=96)), now(gpu(3, memory_temperature_celsius=95))
    ),
    case("temperature.memory", "temperature.memory_too_hot", base="b200x8")(
        now(gpu(3, memory_temperature_celsius=106)), now(gpu(3, memory_temperature_celsius=105))
    ),
    case("temperature.peers", "temperature.hotter_than_peers")(
        now(BUSY, gpus(temperature_celsius=55), gpu(3, temperature_celsius=76)),
        now(BUSY, gpus(temperature_celsius=55), gpu(3, temperature_celsius=75)),
    ),
    case("clocks.hardware_slowdown", "clocks.hardware_thermal_slowdown")(
        now(gpu(3, clocks_event_reasons=("hw_slowdown", "hw_thermal_slowdown"))),
        now(gpu(3, clocks_event_reasons=("sw_power_cap",))),
    ),
    case("clocks.hardware_slowdown", "clocks.power_brake")(
        now(gpu(3, clocks_event_reasons=("hw_slowdown", "hw_power_brake_slowdown"))),
        now(gpu(3, clocks_event_reasons=("sw_power_cap",))),
    ),
    case("clocks.hardware_slowdown", "clocks.hardware_slowdown")(
        now(gpu(3, clocks_event_reasons=("hw_slowdown",))), now(gpu(3, clocks_event_reasons=("sync_boost",)))
    ),
    case("clocks.software_thermal_slowdown", "clocks.software_thermal_slowdown")(
        now(gpu(3, clocks_event_reasons=("sw_thermal_slowdown",))),
        now(gpu(3, clocks_event_reasons=("sw_power_cap",))),
    ),
    case("clocks.throttle_time", "clocks.throttled")(
        now(gpu(3, throttle_seconds=throttled(thermal=7.0)), before=(gpu(3, throttle_seconds=throttled()),)),
        now(
            gpu(3, throttle_seconds=throttled(thermal=5.0, power=70.0)),
            before=(gpu(3, throttle_seconds=throttled()),),
        ),
    ),
    case("clocks.power_capped", "clocks.power_capped")(
        now(BUSY, gpu(3, sm_clock_mhz=1400, clocks_event_reasons=("sw_power_cap",))),
        now(BUSY, gpus(clocks_event_reasons=("sw_power_cap",)), gpu(3, sm_clock_mhz=1500)),
    ),
    # l4rz/reverse-engineering-dell-idrac issue 3: a cap at 240 of 400 W.
    case("clocks.power_capped", "clocks.power_capped", base="a10x1")(
        now(ONE_CAPPED, gpu(0, power_draw_watts=88.0)), now(ONE_CAPPED, gpu(0, power_draw_watts=148.0))
    ),
    # NVIDIA/open-gpu-kernel-modules issue 1236: the reading of the power is impossible.
    case("clocks.power_capped", "clocks.power_capped", base="a10x1")(
        now(ONE_CAPPED, gpu(0, power_draw_watts=588.4)),
        now(ONE_CAPPED, gpu(0, power_draw_watts=88.0, utilization_percent=60)),
    ),
    case("clocks.stuck_low", "clocks.stuck_low")(
        now(BUSY, gpu(3, sm_clock_mhz=345), before=(BUSY, gpu(3, sm_clock_mhz=345)), seconds=90),
        now(BUSY, gpu(3, sm_clock_mhz=345), before=(BUSY,), seconds=90),
    ),
    case("clocks.application", "clocks.application_lowered")(
        now(gpu(3, graphics_clock_application_mhz=1755)), now(gpu(3, graphics_clock_application_mhz=1980))
    ),
    case("clocks.application", "clocks.application_differs")(
        now(gpu(3, graphics_clock_application_mhz=1755, graphics_clock_application_default_mhz=1755)),
        now(gpus(graphics_clock_application_mhz=1755, graphics_clock_application_default_mhz=1755)),
    ),
    case("power.limit", "power.limit_lowered")(
        now(gpu(3, power_limit_enforced_watts=500.0)), now(gpu(3, power_limit_enforced_watts=690.0))
    ),
    case("power.limit", "power.limit_differs")(
        now(gpu(3, power_limit_enforced_watts=500.0, power_limit_default_watts=500.0)),
        now(gpus(power_limit_enforced_watts=500.0, power_limit_default_watts=500.0)),
    ),
    case("power.idle_draw", "power.idle_draw")(
        now(gpu(3, power_draw_watts=260.0)), now(gpu(3, power_draw_watts=190.0))
    ),
)

USE = (
    case("mode.compute", "mode.compute_prohibited")(
        now(gpu(3, compute_mode="prohibited")), now(gpu(3, compute_mode="default"))
    ),
    case("mode.compute", "mode.compute_exclusive")(
        now(gpu(3, compute_mode="exclusive_process")), now(gpu(3, compute_mode="default"))
    ),
    case("mode.mig", "mode.mig_pending")(now(gpu(3, mig_mode_pending="enabled")), now()),
    case("mode.mig", "mode.mig_without_instances", base="h100-mig")(
        now(gpu(0, mig_mode="enabled", mig_mode_pending="enabled", mig_instances=())), now()
    ),
    case("gpu.looks_stuck", "gpu.looks_stuck")(
        now(gpu(3, **STUCK), before=(gpu(3, **STUCK),), seconds=90),
        now(gpu(3, **{**STUCK, "power_draw_watts": 400.0}), before=(gpu(3, **STUCK),), seconds=90),
    ),
    case("process.dead", "process.dead")(
        now(gpu(3, processes=(process(state="Z"),))), now(gpu(3, processes=(process(state="D"),)))
    ),
    case("process.dead", "process.gone")(
        now(gpu(3, processes=(process(visible=False),))), now(gpu(3, processes=(process(),)))
    ),
    case("process.foreign", "process.foreign", base="h100x8-slurm4")(
        now(gpu(4, processes=(process(user="bob"),))), now(gpu(4, processes=(process(user="ann"),)))
    ),
    case("memory.leftover", "memory.leftover")(
        now(gpu(3, memory_used_bytes=900 * MIB)),
        now(gpu(3, memory_used_bytes=900 * MIB, processes=(process(),))),
    ),
    case("memory.free", "memory.held", base="h100x8-slurm4")(
        now(gpu(4, **holding(GIB_HELD, process()))), now(gpu(4, **holding(FEW_HELD, process())))
    ),
    case("memory.free", "memory.held")(
        now(gpus(**holding(GIB_HELD, process()))), now(gpu(3, **holding(GIB_HELD, process())))
    ),
    case("memory.free", "memory.below_minimum")(
        now(gpu(3, **holding(FEW_HELD, process())), expected={"least_free_memory": FreeMemory(share=0.99)}),
        now(gpu(3, **holding(FEW_HELD, process())), expected={"least_free_memory": FreeMemory(share=0.9)}),
    ),
)

GPU_CASES = (*DISCOVERY, *MEMORY, *PACE, *USE)
