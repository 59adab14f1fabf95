"""`nvidia-smi -q -x` of a simulated machine: the layout of driver 580, for gpudiag's readings."""

from __future__ import annotations

import time
from collections.abc import Callable
from xml.sax.saxutils import escape

from gpudiag.reference.vocabulary import REASONS_IN_NVIDIA_SMI, reasons_of
from gpudiag.simulate.nvidia_smi.fields import find_field, read_architecture, read_brand
from gpudiag.simulate.nvidia_smi.nvml import GPU_IS_LOST, Gpu, Nvml, NvmlError, words_of

_DRAM, _SRAM = 2, 7  # nvmlMemoryLocation_t
_MIB = 1024**2

# An element: its tag, and its text or the elements in it.
Element = tuple[str, "str | list[Element]"]


class _Writer:
    """The elements of one GPU; remembers whether a reading failed because it is lost."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.is_lost = False

    def words(self, code: int) -> str:
        """nvidia-smi's words for a missing reading."""
        self.is_lost |= code == GPU_IS_LOST
        return words_of(self.gpu.nvml, code)

    def element(self, tag: str, read: Callable[[Gpu], object], unit: str = "") -> Element:
        """An element with a reading and its unit, or nvidia-smi's words for why there is none."""
        try:
            value = str(read(self.gpu))
        except NvmlError as error:
            return tag, self.words(error.code)
        return tag, f"{value} {unit}" if unit and value != "N/A" else value

    def field(self, tag: str, name: str, unit: str = "") -> Element:
        """An element with the reading of one of --query-gpu's fields."""
        reader, own_unit = find_field(name) or (lambda gpu: "N/A", "")
        return self.element(tag, reader, unit or own_unit)


def render_xml(nvml: Nvml, gpus: list[Gpu]) -> tuple[str, bool]:
    """The whole document, and whether a GPU in it is lost."""
    major, minor = divmod(nvml.number("nvmlSystemGetCudaDriverVersion_v2"), 1000)
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">',
        "<nvidia_smi_log>",
    ]
    head: list[Element] = [
        ("timestamp", time.strftime("%a %b %d %H:%M:%S %Y")),
        ("driver_version", nvml.text("nvmlSystemGetDriverVersion")),
        ("cuda_version", f"{major}.{minor // 10}"),
        ("attached_gpus", str(len(gpus))),
    ]
    lines += _render(head, 1)
    is_lost = False
    for gpu in gpus:
        writer = _Writer(gpu)
        elements = _describe(writer)
        bus_id = writer.field("id", "pci.bus_id")[1]
        lines += [f'\t<gpu id="{escape(str(bus_id))}">', *_render(elements, 2), "\t</gpu>", ""]
        is_lost |= writer.is_lost
    return "\n".join([*lines, "</nvidia_smi_log>"]), is_lost


def _render(elements: list[Element], depth: int) -> list[str]:
    indent = "\t" * depth
    lines = []
    for tag, content in elements:
        if isinstance(content, str):
            lines.append(f"{indent}<{tag}>{escape(content)}</{tag}>")
        else:
            lines += [f"{indent}<{tag}>", *_render(content, depth + 1), f"{indent}</{tag}>"]
    return lines


def _describe(w: _Writer) -> list[Element]:
    return [
        w.field("product_name", "name"),
        w.element("product_brand", read_brand),
        w.element("product_architecture", read_architecture),
        w.field("display_mode", "display_mode"),
        w.field("display_active", "display_active"),
        w.field("persistence_mode", "persistence_mode"),
        (
            "mig_mode",
            [w.field("current_mig", "mig.mode.current"), w.field("pending_mig", "mig.mode.pending")],
        ),
        ("mig_devices", _mig_devices(w)),
        w.field("serial", "serial"),
        w.field("uuid", "uuid"),
        w.field("minor_number", "minor_number"),
        w.field("vbios_version", "vbios_version"),
        w.element("board_part_number", lambda gpu: gpu.text("GetBoardPartNumber")),
        w.field("gpu_recovery_action", "gpu_recovery_action"),
        ("pci", _pci(w)),
        w.field("fan_speed", "fan.speed"),
        w.field("performance_state", "pstate"),
        ("clocks_event_reasons", _event_reasons(w)),
        (
            "fb_memory_usage",
            [w.field(part, f"memory.{part}") for part in ("total", "reserved", "used", "free")],
        ),
        w.field("compute_mode", "compute_mode"),
        (
            "utilization",
            [w.field("gpu_util", "utilization.gpu"), w.field("memory_util", "utilization.memory")],
        ),
        (
            "ecc_mode",
            [w.field("current_ecc", "ecc.mode.current"), w.field("pending_ecc", "ecc.mode.pending")],
        ),
        ("ecc_errors", _ecc_errors(w)),
        ("retired_pages", _retired_pages(w)),
        ("remapped_rows", _remapped_rows(w)),
        ("temperature", _temperature(w)),
        ("gpu_power_readings", _power(w)),
        ("clocks", _clocks(w, "clocks", ("graphics", "sm", "mem", "video"))),
        ("applications_clocks", _clocks(w, "clocks.applications", ("graphics", "mem"))),
        ("max_clocks", _clocks(w, "clocks.max", ("graphics", "sm", "mem"))),
        ("processes", _processes(w)),
    ]


def _pci(w: _Writer) -> list[Element]:
    return [
        w.element("pci_bus", lambda gpu: gpu.bus_id()[9:11]),
        w.element("pci_device", lambda gpu: gpu.bus_id()[12:14]),
        w.element("pci_domain", lambda gpu: gpu.bus_id()[4:8]),
        w.element("pci_device_id", lambda gpu: f"{gpu.pci_ids()[0]:08X}"),
        w.field("pci_bus_id", "pci.bus_id"),
        w.element("pci_sub_system_id", lambda gpu: f"{gpu.pci_ids()[1]:08X}"),
        (
            "pci_gpu_link_info",
            [
                (
                    "pcie_gen",
                    [
                        w.field("max_link_gen", "pcie.link.gen.max"),
                        w.field("current_link_gen", "pcie.link.gen.current"),
                        w.field("device_current_link_gen", "pcie.link.gen.current"),
                        w.field("max_device_link_gen", "pcie.link.gen.gpumax"),
                        ("max_host_link_gen", "N/A"),
                    ],
                ),
                (
                    "link_widths",
                    [
                        w.element("max_link_width", lambda gpu: f"{gpu.number('GetMaxPcieLinkWidth')}x"),
                        w.element("current_link_width", lambda gpu: f"{gpu.number('GetCurrPcieLinkWidth')}x"),
                    ],
                ),
            ],
        ),
        w.element("replay_counter", lambda gpu: gpu.number("GetPcieReplayCounter")),
    ]


def _mig_devices(w: _Writer) -> str | list[Element]:
    devices: list[Element] = []
    for mig in w.gpu.mig_devices():
        own = _Writer(mig)
        memory: list[Element] = [
            own.element(
                part,
                lambda gpu, part=part: -(-gpu.memory_bytes()[part] // _MIB),  # type: ignore[misc]
                "MiB",
            )
            for part in ("total", "used", "free")
        ]
        devices.append(
            (
                "mig_device",
                [
                    ("index", str(mig.nvml_index)),
                    own.element("gpu_instance_id", lambda gpu: gpu.number("GetGpuInstanceId")),
                    own.element("compute_instance_id", lambda gpu: gpu.number("GetComputeInstanceId")),
                    ("fb_memory_usage", memory),
                ],
            )
        )
    return devices or "None"


def _event_reasons(w: _Writer) -> str | list[Element]:
    prefix = "clocks_event_reason_"
    try:
        bits = w.gpu.wide("GetCurrentClocksEventReasons")
    except NvmlError as error:
        return w.words(error.code)
    return [
        (f"{prefix}{reason}", "Active" if reason in reasons_of(bits) else "Not Active")
        for reason in REASONS_IN_NVIDIA_SMI
    ]


def _ecc_errors(w: _Writer) -> list[Element]:
    sections: list[Element] = []
    for number, section in enumerate(("volatile", "aggregate")):
        counts = [
            w.element(
                f"{place}_{error}able",
                lambda gpu, key=(kind, number, location): gpu.wide(  # type: ignore[misc]
                    "GetMemoryErrorCounter", *key
                ),
            )
            for place, location in (("sram", _SRAM), ("dram", _DRAM))
            for kind, error in enumerate(("correct", "uncorrect"))
        ]
        sections.append((section, counts))
    return sections


def _retired_pages(w: _Writer) -> list[Element]:
    causes = (("multiple_single_bit_retirement", 29), ("double_bit_retirement", 30))  # NVML_FI_DEV_RETIRED_*
    elements: list[Element] = [
        (cause, [w.element("retired_count", lambda gpu, field=field: gpu.field(field))])  # type: ignore[misc]
        for cause, field in causes
    ]
    pending = w.element("pending_retirement", lambda gpu: _yes_no(gpu.number("GetRetiredPagesPendingStatus")))
    return [*elements, pending]


def _remapped_rows(w: _Writer) -> str | list[Element]:
    try:
        corrected, uncorrected, pending, failed = w.gpu.four("GetRemappedRows")
    except NvmlError as error:
        return w.words(error.code)
    names = ("max", "high", "partial", "low", "none")
    try:
        banks = w.gpu.numbers("GetRowRemapperHistogram", len(names))
        histogram: str | list[Element] = [
            (f"row_remapper_histogram_{name}", f"{count} bank(s)")
            for name, count in zip(names, banks, strict=True)
        ]
    except NvmlError as error:
        histogram = words_of(w.gpu.nvml, error.code)
    return [
        ("remapped_row_corr", str(corrected)),
        ("remapped_row_unc", str(uncorrected)),
        ("remapped_row_pending", _yes_no(pending)),
        ("remapped_row_failure", _yes_no(failed)),
        ("row_remapper_histogram", histogram),
    ]


def _temperature(w: _Writer) -> list[Element]:
    margin = w.field("gpu_temp_tlimit", "temperature.gpu.tlimit", "C")
    shutdown = w.element("gpu_temp_max_threshold", lambda gpu: gpu.number("GetTemperatureThreshold", 0), "C")
    slowdown = w.element("gpu_temp_slow_threshold", lambda gpu: gpu.number("GetTemperatureThreshold", 1), "C")
    return [
        w.field("gpu_temp", "temperature.gpu", "C"),
        margin,
        shutdown,
        slowdown,
        w.field("memory_temp", "temperature.memory", "C"),
    ]


def _power(w: _Writer) -> list[Element]:
    return [
        w.field("power_state", "pstate"),
        w.field("average_power_draw", "power.draw"),
        w.field("instant_power_draw", "power.draw"),
        w.field("current_power_limit", "enforced.power.limit"),
        w.field("requested_power_limit", "power.limit"),
        w.field("default_power_limit", "power.default_limit"),
        w.field("min_power_limit", "power.min_limit"),
        w.field("max_power_limit", "power.max_limit"),
    ]


def _clocks(w: _Writer, section: str, clocks: tuple[str, ...]) -> list[Element]:
    return [
        w.field(f"{clock}_clock", f"{section}.{'gr' if clock == 'graphics' else clock}") for clock in clocks
    ]


def _processes(w: _Writer) -> list[Element]:
    elements: list[Element] = []
    for kind in ("Compute", "Graphics"):
        try:
            processes = w.gpu.processes(kind)
        except NvmlError as error:
            w.words(error.code)
            continue
        for pid, memory in processes:
            used = "N/A" if memory is None else f"{-(-memory // _MIB)} MiB"
            info: list[Element] = [
                ("pid", str(pid)),
                ("type", kind[0]),
                _process_name(w, pid),
                ("used_memory", used),
            ]
            elements.append(("process_info", info))
    return elements


def _process_name(w: _Writer, pid: int) -> Element:
    try:
        return "process_name", w.gpu.nvml.process_name(pid)
    except NvmlError:
        return "process_name", "[Not Found]"


def _yes_no(number: int) -> str:
    return "Yes" if number else "No"
