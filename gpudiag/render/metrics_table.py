"""Every GPU metric once, with its names in three vocabularies: gpudiag's own, dcgm-exporter's, OpenTelemetry's.

Own names follow Prometheus (base units, `_total` for counters). dcgm-exporter's are those of its default
counters, which dashboards and alerts in the field use (dcgm-exporter 4.8, etc/default-counters.csv).
OpenTelemetry's are the hardware conventions (semantic-conventions 1.38, status development), read 2026-11.
"""

from collections.abc import Iterator
from typing import Any

from gpudiag.model.device import Device
from gpudiag.model.reading import Missing, Reading
from gpudiag.render.metric_names import DcgmName, Metric, OtelName, Samples
from gpudiag.units import MIB

_HERTZ_PER_MHZ = 1e6
_NANOSECONDS_PER_SECOND = 1e9
_PERCENT = 100.0

# NVML's clocks event reasons under which dcgm-exporter gives the mask; bit by bit, lowest first.
REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost",
    "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks_setting",
)  # fmt: skip
# Those that cost speed; idleness and settings are in the mask.
_COSTLY_REASONS = (
    "sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
)  # fmt: skip
RECOVERY_ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset")


def _one(name: str, scale: float = 1.0) -> Samples:
    """The reading of that name, multiplied; nothing where it is missing."""

    def read(device: Device) -> Iterator[tuple[dict[str, str], float]]:
        reading: Reading[float] = getattr(device, name)
        if not isinstance(reading, Missing):
            yield {}, float(reading) * scale

    return read


def _each(label: str, names: dict[str, str], scale: float = 1.0) -> Samples:
    """One sample for each of several readings, told apart by a label."""

    def read(device: Device) -> Iterator[tuple[dict[str, str], float]]:
        for word, name in names.items():
            reading: Reading[float] = getattr(device, name)
            if not isinstance(reading, Missing):
                yield {label: word}, float(reading) * scale

    return read


def _throttle(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    reasons = device.clocks_event_reasons
    if not isinstance(reasons, Missing):
        for reason in _COSTLY_REASONS:
            yield {"reason": reason}, float(reason in reasons)


def _throttle_mask(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    reasons = device.clocks_event_reasons
    if not isinstance(reasons, Missing):
        yield {}, float(sum(1 << bit for bit, reason in enumerate(REASONS) if reason in reasons))


def _throttle_seconds(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    seconds = device.throttle_seconds
    if isinstance(seconds, Missing):
        return
    for reason in ("power", "thermal", "sync_boost", "board_limit", "reliability"):
        reading: Reading[float] = getattr(seconds, reason)
        if not isinstance(reading, Missing):
            yield {"reason": reason}, reading


def _ecc(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    for severity in ("corrected", "uncorrected"):
        for scope in ("volatile", "aggregate"):
            reading: Reading[int] = getattr(device, f"ecc_{severity}_{scope}")
            if not isinstance(reading, Missing):
                yield {"severity": severity, "scope": scope}, float(reading)


def _nvlinks(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    links = device.nvlinks
    if isinstance(links, Missing):
        return
    known = [link.active for link in links if not isinstance(link.active, Missing)]
    yield {"state": "active"}, float(sum(known))
    yield {"state": "inactive"}, float(len(known) - sum(known))


def _nvlink_errors(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    links = device.nvlinks
    if isinstance(links, Missing) or not links:
        return
    for kind in ("crc_flit", "crc_data", "replay", "recovery"):
        readings = [getattr(link, f"{kind}_errors") for link in links]
        known = [float(reading) for reading in readings if not isinstance(reading, Missing)]
        if known:
            yield {"type": kind}, sum(known)


def _processes(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    if not isinstance(device.processes, Missing):
        yield {}, float(len(device.processes))


def _recovery(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    action = device.recovery_action
    if not isinstance(action, Missing) and action in RECOVERY_ACTIONS:
        yield {}, float(RECOVERY_ACTIONS.index(action))


def _responding(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    yield {}, float(device.responding is True)


def _gauge(
    name: str,
    text: str,
    samples: Samples,
    dcgm: tuple[DcgmName, ...] = (),
    otel: tuple[OtelName, ...] = (),
    **scrape: Any,
) -> Metric:
    return Metric(f"gpudiag_gpu_{name}", "gauge", text, samples, dcgm, otel, **scrape)


def _counter(
    name: str,
    text: str,
    samples: Samples,
    dcgm: tuple[DcgmName, ...] = (),
    otel: tuple[OtelName, ...] = (),
    **scrape: Any,
) -> Metric:
    return Metric(f"gpudiag_gpu_{name}_total", "counter", text, samples, dcgm, otel, **scrape)


def _dcgm(name: str, text: str, scale: float = 1.0, kind: str = "gauge", **labels: str) -> DcgmName:
    return DcgmName(f"DCGM_FI_DEV_{name}", kind, text, scale, labels)


METRICS: tuple[Metric, ...] = (
    _gauge("up", "Whether the GPU answers: 0 is lost or silent.", _responding),
    _gauge(
        "utilization_ratio",
        "Share of time in which a kernel ran, 0 to 1.",
        _one("utilization_percent", 1 / _PERCENT),
        (_dcgm("GPU_UTIL", "GPU utilization (in %).", _PERCENT),),
        (OtelName("hw.gpu.utilization", "1", {"hw.gpu.task": "general"}),),
    ),
    _gauge(
        "memory_controller_utilization_ratio",
        "Share of time in which memory was read or written, 0 to 1.",
        _one("memory_utilization_percent", 1 / _PERCENT),
        (_dcgm("MEM_COPY_UTIL", "Memory utilization (in %).", _PERCENT),),
    ),
    _gauge(
        "memory_total_bytes",
        "Memory of the GPU.",
        _one("memory_total_bytes"),
        (_dcgm("FB_TOTAL", "Total framebuffer memory (in MiB).", 1 / MIB),),
        (OtelName("hw.gpu.memory.limit", "By"),),
    ),
    _gauge(
        "memory_used_bytes",
        "Memory in use, without what the driver keeps for itself.",
        _one("memory_used_bytes"),
        (_dcgm("FB_USED", "Framebuffer memory used (in MiB).", 1 / MIB),),
        (OtelName("hw.gpu.memory.usage", "By"),),
    ),
    _gauge(
        "memory_free_bytes",
        "Memory that is free.",
        _one("memory_free_bytes"),
        (_dcgm("FB_FREE", "Framebuffer memory free (in MiB).", 1 / MIB),),
        core=False,
    ),
    _gauge(
        "memory_reserved_bytes",
        "Memory that the driver keeps for itself.",
        _one("memory_reserved_bytes"),
        (_dcgm("FB_RESERVED", "Framebuffer memory reserved (in MiB).", 1 / MIB),),
        core=False,
    ),
    _gauge(
        "temperature_celsius",
        "Temperature by sensor: gpu (the core) or memory (HBM).",
        _each("sensor", {"gpu": "temperature_celsius", "memory": "memory_temperature_celsius"}),
        (
            _dcgm("GPU_TEMP", "GPU temperature (in C).", sensor="gpu"),
            _dcgm("MEMORY_TEMP", "Memory temperature (in C).", sensor="memory"),
        ),
        (OtelName("hw.temperature", "Cel", {"hw.sensor_location": "gpu"}, {"sensor": "gpu"}),
         OtelName("hw.temperature", "Cel", {"hw.sensor_location": "memory"}, {"sensor": "memory"})),
    ),
    _gauge(
        "temperature_margin_celsius",
        "Degrees left until the GPU slows down (T.Limit).",
        _one("temperature_margin_celsius"),
    ),
    _gauge(
        "power_watts",
        "Power drawn now.",
        _one("power_draw_watts"),
        (_dcgm("POWER_USAGE", "Power draw (in W)."),),
        (OtelName("hw.power", "W"),),
    ),
    _gauge(
        "power_limit_watts",
        "Power limit that is enforced.",
        _one("power_limit_enforced_watts"),
        (_dcgm("ENFORCED_POWER_LIMIT", "Enforced power limit (in W)."),),
    ),
    _gauge(
        "clock_hertz",
        "Clock frequency now.",
        _each("clock", {"sm": "sm_clock_mhz", "memory": "memory_clock_mhz", "video": "video_clock_mhz"},
              _HERTZ_PER_MHZ),
        (
            _dcgm("SM_CLOCK", "SM clock frequency (in MHz).", 1 / _HERTZ_PER_MHZ, clock="sm"),
            _dcgm("MEM_CLOCK", "Memory clock frequency (in MHz).", 1 / _HERTZ_PER_MHZ, clock="memory"),
            _dcgm("VIDEO_CLOCK", "Video clock frequency (in MHz).", 1 / _HERTZ_PER_MHZ, clock="video"),
        ),
        (OtelName("gpudiag.gpu.clock", "Hz", {"gpudiag.clock": "sm"}, {"clock": "sm"}),),
        rare=frozenset({"video"}),
    ),
    _gauge(
        "clock_max_hertz",
        "Highest clock frequency of the product.",
        _each("clock", {"sm": "sm_clock_max_mhz", "memory": "memory_clock_max_mhz"}, _HERTZ_PER_MHZ),
        (_dcgm("MAX_SM_CLOCK", "Maximum SM clock frequency (in MHz).", 1 / _HERTZ_PER_MHZ, clock="sm"),),
        core=False,
    ),
    _gauge(
        "pstate",
        "Performance state, 0 (fastest) to 15.",
        _one("pstate"),
        (_dcgm("PSTATE", "Performance state (0 is the fastest)."),),
    ),
    _gauge("throttle_active", "1 while that reason holds the clocks down.", _throttle),
    _gauge(
        "throttle_mask",
        "The same as bits, in NVML's order.",
        _throttle_mask,
        (_dcgm("CLOCK_THROTTLE_REASONS", "Current clock throttle reasons (bitmask)."),),
        core=False,
    ),
    _counter(
        "throttle_seconds",
        "Seconds for which that reason has held the clocks down since the driver was loaded.",
        _throttle_seconds,
        (
            _dcgm("POWER_VIOLATION", "Throttling duration due to power constraints (in ns).",
                  _NANOSECONDS_PER_SECOND, "counter", reason="power"),
            _dcgm("THERMAL_VIOLATION", "Throttling duration due to thermal constraints (in ns).",
                  _NANOSECONDS_PER_SECOND, "counter", reason="thermal"),
            _dcgm("SYNC_BOOST_VIOLATION", "Throttling duration due to sync-boost constraints (in ns).",
                  _NANOSECONDS_PER_SECOND, "counter", reason="sync_boost"),
            _dcgm("BOARD_LIMIT_VIOLATION", "Throttling duration due to board limit constraints (in ns).",
                  _NANOSECONDS_PER_SECOND, "counter", reason="board_limit"),
            _dcgm("RELIABILITY_VIOLATION", "Throttling duration due to reliability constraints (in ns).",
                  _NANOSECONDS_PER_SECOND, "counter", reason="reliability"),
        ),
    ),
    _gauge(
        "fan_speed_ratio",
        "Fan speed as a share of the highest, 0 to 1.",
        _one("fan_speed_percent", 1 / _PERCENT),
        (_dcgm("FAN_SPEED", "Fan speed (in %).", _PERCENT),),
        (OtelName("hw.fan.speed_ratio", "1"),),
    ),
    _gauge(
        "pcie_link_generation",
        "PCIe generation of the link.",
        _each("which", {"current": "pcie_generation", "max": "pcie_generation_gpu_max"}),
        (_dcgm("PCIE_LINK_GEN", "PCIe current link generation.", which="current"),),
        rare=frozenset({"max"}),
    ),
    _gauge(
        "pcie_link_width",
        "PCIe lanes of the link.",
        _each("which", {"current": "pcie_width", "max": "pcie_width_gpu_max"}),
        (_dcgm("PCIE_LINK_WIDTH", "PCIe current link width.", which="current"),),
        rare=frozenset({"max"}),
    ),
    _counter(
        "pcie_replay",
        "PCIe packets sent again.",
        _one("pcie_replay_count"),
        (_dcgm("PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", 1.0, "counter"),),
    ),
    _gauge("nvlink_links", "NVLinks by state.", _nvlinks),
    _counter(
        "nvlink_errors",
        "NVLink errors over all links.",
        _nvlink_errors,
        (
            _dcgm("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "Total number of NVLink flow-control CRC errors.",
                  1.0, "counter", type="crc_flit"),
            _dcgm("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "Total number of NVLink data CRC errors.",
                  1.0, "counter", type="crc_data"),
            _dcgm("NVLINK_REPLAY_ERROR_COUNT_TOTAL", "Total number of NVLink retries.",
                  1.0, "counter", type="replay"),
            _dcgm("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "Total number of NVLink recovery errors.",
                  1.0, "counter", type="recovery"),
        ),
        rare=frozenset({"crc_flit"}),
    ),
    _counter(
        "ecc_errors",
        "ECC errors; volatile ones since the driver was loaded.",
        _ecc,
        (
            _dcgm("ECC_SBE_VOL_TOTAL", "Total number of single-bit volatile ECC errors.", 1.0, "counter",
                  severity="corrected", scope="volatile"),
            _dcgm("ECC_DBE_VOL_TOTAL", "Total number of double-bit volatile ECC errors.", 1.0, "counter",
                  severity="uncorrected", scope="volatile"),
            _dcgm("ECC_SBE_AGG_TOTAL", "Total number of single-bit persistent ECC errors.", 1.0, "counter",
                  severity="corrected", scope="aggregate"),
            _dcgm("ECC_DBE_AGG_TOTAL", "Total number of double-bit persistent ECC errors.", 1.0, "counter",
                  severity="uncorrected", scope="aggregate"),
        ),
        (OtelName("hw.errors", "{error}", {"error.type": "corrected"},
                  {"severity": "corrected", "scope": "volatile"}),
         OtelName("hw.errors", "{error}", {"error.type": "uncorrected"},
                  {"severity": "uncorrected", "scope": "volatile"})),
        rare=frozenset({"aggregate"}),
    ),
    _gauge(
        "remapped_rows",
        "Memory rows that were replaced by spare ones, by the kind of error.",
        _each("cause", {"correctable": "row_remap_correctable", "uncorrectable": "row_remap_uncorrectable"}),
        (
            _dcgm("UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors.",
                  1.0, "counter", cause="uncorrectable"),
            _dcgm("CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors.",
                  1.0, "counter", cause="correctable"),
        ),
        rare=frozenset({"correctable"}),
    ),
    _gauge("remap_pending", "1 while a row waits for a reset to be replaced.", _one("row_remap_pending")),
    _gauge(
        "remap_failure",
        "1 when a row could not be replaced.",
        _one("row_remap_failed"),
        (_dcgm("ROW_REMAP_FAILURE", "Whether remapping of rows has failed."),),
    ),
    _gauge(
        "retired_pages",
        "Memory pages taken out of use (before Ampere), by the kind of error.",
        _each("cause", {"corrected": "retired_pages_corrected", "uncorrected": "retired_pages_uncorrected"}),
        (
            _dcgm("RETIRED_SBE", "Number of retired pages due to single-bit errors.", 1.0, "counter",
                  cause="corrected"),
            _dcgm("RETIRED_DBE", "Number of retired pages due to double-bit errors.", 1.0, "counter",
                  cause="uncorrected"),
        ),
    ),
    _gauge(
        "recovery_action",
        "What NVML asks for: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset.",
        _recovery,
    ),
    _gauge("processes", "Processes that hold memory on the GPU.", _processes),
)  # fmt: skip
