"""Hold a base machine against what real hardware reported: `nvidia-smi -q -x` of a machine of that kind.

    python tools/compare_capture.py CAPTURE.xml ... [--machine NAME] [--all]

The machine is chosen by the product's name in the capture. Each reading is held against the field of the
capture with the same: same, differs (both values), not in the capture, or N/A on one side only.
The last is a difference of structure: the base machine claims a reading that the hardware does not
give, or lacks one that it gives. Identifiers and readings that change from second to second are
counted apart. Exit status: 0 no difference of structure, 1 some, 2 a usage error.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpudiag.errors import UsageError
from gpudiag.reference.vocabulary import ACTIONS_IN_NVIDIA_SMI
from gpudiag.simulate.loader import base_machines, load_scenario
from gpudiag.simulate.scenario import Scenario, SimulatedGpu
from gpudiag.units import MIB

_ABSENT_WORDS = ("N/A", "None", "", "Requested functionality has been deprecated", "[N/A]")
_Entry = tuple[str, str, Callable[[str], Any]]
_ACTIONS = {shown: action for action, shown in ACTIONS_IN_NVIDIA_SMI.items()}


@dataclass(frozen=True, slots=True)
class Field:
    """One reading, where a capture has it, and how its text becomes the reading's value.

    `kind` is `fixed` for what two machines of one kind share, else `identity`, `live` or `setting`.
    """

    reading: str
    path: str
    parse: Callable[[str], Any]
    kind: str = "fixed"


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one reading of one GPU compares: the outcome's word, and both sides."""

    field: Field
    outcome: str  # same, differs, not_in_capture, only_here, only_in_capture
    ours: Any = None
    theirs: Any = None

    @property
    def is_structural(self) -> bool:
        """Whether one side has a value and the other has none."""
        return self.outcome in ("only_here", "only_in_capture")


def parse_number(text: str) -> float:
    """The number before a unit: `68.92 W`, `16x`, `2560 bank(s)`, `-2 C`."""
    number = float(text.split()[0].rstrip("x%"))
    return int(number) if number.is_integer() else number


def parse_mib(text: str) -> float:
    """Bytes of a size in MiB, which nvidia-smi rounds up to a whole number."""
    return parse_number(text) * MIB


def parse_word(text: str) -> str:
    """`Enabled` as the model writes it, `enabled`; `Exclusive_Process` as `exclusive_process`."""
    return text.lower().replace(" ", "_")


def parse_yes(text: str) -> bool:
    """True for `Yes`."""
    return text == "Yes"


def parse_architecture(text: str) -> str:
    """`ada` for `Ada Lovelace`."""
    return text.split()[0].lower()


def parse_action(text: str) -> str:
    """The recovery action's word; nvidia-smi writes `None` where nothing need be done."""
    return _ACTIONS.get(text, text)


def _fields() -> tuple[Field, ...]:
    ecc = "ecc_errors"
    limits = "gpu_power_readings"
    fixed: tuple[_Entry, ...] = (
        ("name", "product_name", str),
        ("vbios_version", "vbios_version", str),
        ("architecture", "product_architecture", parse_architecture),
        ("mig_mode", "mig_mode/current_mig", parse_word),
        ("mig_mode_pending", "mig_mode/pending_mig", parse_word),
        ("memory_total_bytes", "fb_memory_usage/total", parse_mib),
        ("memory_reserved_bytes", "fb_memory_usage/reserved", parse_mib),
        ("temperature_slowdown_celsius", "temperature/gpu_temp_slow_threshold", parse_number),
        ("temperature_shutdown_celsius", "temperature/gpu_temp_max_threshold", parse_number),
        ("power_limit_default_watts", f"{limits}/default_power_limit", parse_number),
        ("power_limit_min_watts", f"{limits}/min_power_limit", parse_number),
        ("power_limit_max_watts", f"{limits}/max_power_limit", parse_number),
        ("graphics_clock_max_mhz", "max_clocks/graphics_clock", parse_number),
        ("sm_clock_max_mhz", "max_clocks/sm_clock", parse_number),
        ("memory_clock_max_mhz", "max_clocks/mem_clock", parse_number),
        ("graphics_clock_application_mhz", "applications_clocks/graphics_clock", parse_number),
        ("memory_clock_application_mhz", "applications_clocks/mem_clock", parse_number),
        ("ecc_uncorrected_volatile", f"{ecc}/volatile/dram_uncorrectable", parse_number),
        ("ecc_corrected_volatile", f"{ecc}/volatile/dram_correctable", parse_number),
        ("ecc_uncorrected_aggregate", f"{ecc}/aggregate/dram_uncorrectable", parse_number),
        ("ecc_corrected_aggregate", f"{ecc}/aggregate/dram_correctable", parse_number),
        ("row_remap_correctable", "remapped_rows/remapped_row_corr", parse_number),
        ("row_remap_uncorrectable", "remapped_rows/remapped_row_unc", parse_number),
        ("row_remap_pending", "remapped_rows/remapped_row_pending", parse_yes),
        ("row_remap_failed", "remapped_rows/remapped_row_failure", parse_yes),
        (
            "row_remap_histogram.max_banks",
            "remapped_rows/row_remapper_histogram/row_remapper_histogram_max",
            parse_number,
        ),
        (
            "retired_pages_corrected",
            "retired_pages/multiple_single_bit_retirement/retired_count",
            parse_number,
        ),
        ("retired_pages_uncorrected", "retired_pages/double_bit_retirement/retired_count", parse_number),
        ("page_retirement_pending", "retired_pages/pending_retirement", parse_yes),
        ("pcie_generation_gpu_max", "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen", parse_number),
        ("pcie_width_gpu_max", "pci/pci_gpu_link_info/link_widths/max_link_width", parse_number),
        ("pcie_width", "pci/pci_gpu_link_info/link_widths/current_link_width", parse_number),
        ("fan_speed_percent", "fan_speed", parse_number),
        ("brand", "product_brand", parse_word),
        ("gsp_firmware_version", "gsp_firmware_version", str),
        ("inforom_version", "inforom_version/img_version", str),
        ("ecc_sram_threshold_exceeded", f"{ecc}/aggregate/sram_threshold_exceeded", parse_yes),
        ("memory_channel_repair_pending", f"{ecc}/channel_repair_pending", parse_yes),
        ("tpc_repair_pending", f"{ecc}/tpc_repair_pending", parse_yes),
        ("temperature_margin_slowdown_celsius", "temperature/gpu_temp_slow_tlimit_threshold", parse_number),
        ("temperature_gpu_max_celsius", "temperature/gpu_temp_max_gpu_threshold", parse_number),
        ("temperature_memory_max_celsius", "temperature/gpu_temp_max_mem_threshold", parse_number),
        (
            "graphics_clock_application_default_mhz",
            "default_applications_clocks/graphics_clock",
            parse_number,
        ),
        ("memory_clock_application_default_mhz", "default_applications_clocks/mem_clock", parse_number),
        ("fabric.state", "fabric/state", parse_word),
    )
    settings: tuple[_Entry, ...] = (
        ("ecc_mode", "ecc_mode/current_ecc", parse_word),
        ("ecc_mode_pending", "ecc_mode/pending_ecc", parse_word),
        ("persistence_mode", "persistence_mode", parse_word),
        ("compute_mode", "compute_mode", parse_word),
        ("power_limit_watts", f"{limits}/requested_power_limit", parse_number),
        ("power_limit_enforced_watts", f"{limits}/current_power_limit", parse_number),
        ("recovery_action", "gpu_recovery_action", parse_action),
    )
    live: tuple[_Entry, ...] = (
        ("memory_used_bytes", "fb_memory_usage/used", parse_mib),
        ("memory_free_bytes", "fb_memory_usage/free", parse_mib),
        ("utilization_percent", "utilization/gpu_util", parse_number),
        ("memory_utilization_percent", "utilization/memory_util", parse_number),
        ("temperature_celsius", "temperature/gpu_temp", parse_number),
        ("memory_temperature_celsius", "temperature/memory_temp", parse_number),
        ("temperature_margin_celsius", "temperature/gpu_temp_tlimit", parse_number),
        ("power_draw_watts", f"{limits}/instant_power_draw", parse_number),
        ("graphics_clock_mhz", "clocks/graphics_clock", parse_number),
        ("sm_clock_mhz", "clocks/sm_clock", parse_number),
        ("memory_clock_mhz", "clocks/mem_clock", parse_number),
        ("video_clock_mhz", "clocks/video_clock", parse_number),
        ("pstate", "performance_state", lambda text: int(text.removeprefix("P"))),
        ("pcie_generation", "pci/pci_gpu_link_info/pcie_gen/current_link_gen", parse_number),
        ("pcie_replay_count", "pci/replay_counter", parse_number),
    )
    identity: tuple[_Entry, ...] = (
        ("uuid", "uuid", str),
        ("serial", "serial", str),
        ("bus_id", "pci/pci_bus_id", str.lower),
        ("board_part_number", "board_part_number", str),
    )
    kinds = {"fixed": fixed, "setting": settings, "live": live, "identity": identity}
    return tuple(
        Field(reading, path, parse, kind)
        for kind, entries in kinds.items()
        for reading, path, parse in entries
    )


FIELDS = _fields()


def compare(element: ElementTree.Element, gpu: SimulatedGpu) -> list[Comparison]:
    """One GPU of a capture against one of a base machine, field by field."""
    return [_compare_field(field, element, gpu) for field in FIELDS]


def _compare_field(field: Field, element: ElementTree.Element, gpu: SimulatedGpu) -> Comparison:
    ours: Any = gpu.readings
    for name in field.reading.split("."):
        ours = ours.get(name) if ours is not None else None
    text = element.findtext(field.path)
    # A group such as `remapped_rows` may be N/A as a whole.
    text = (element.findtext(field.path.split("/")[0]) if text is None else text) or ""
    text = text.strip()
    if element.find(field.path) is None and text != "N/A":
        return Comparison(field, "not_in_capture", ours)
    if text in _ABSENT_WORDS and field.parse is not parse_action:
        return Comparison(field, "same" if ours is None else "only_here", ours)
    theirs = field.parse(text)
    if ours is None:
        return Comparison(field, "only_in_capture", None, theirs)
    return Comparison(field, "same" if _equal(ours, theirs, field) else "differs", ours, theirs)


def _equal(ours: Any, theirs: Any, field: Field) -> bool:
    if field.parse is parse_mib:
        return bool(theirs - MIB < ours <= theirs)
    return bool(ours == theirs)


def machine_for(root: ElementTree.Element) -> str:
    """The base machine of the capture's product and number of GPUs, or the nearest by number.

    Raises:
        UsageError: no base machine has that GPU.
    """
    product = root.findtext("gpu/product_name") or ""
    mig = root.findtext("gpu/mig_mode/current_mig") == "Enabled"
    scenarios = [load_scenario(name) for name in base_machines()]
    same = [scenario for scenario in scenarios if _product(scenario) == product and _is_mig(scenario) is mig]
    # A plain machine before a job's or a container's view of it.
    same.sort(key=lambda scenario: (bool(scenario.environment), len(scenario.gpus), scenario.name))
    if not same:
        raise UsageError(f"no base machine has a {product!r}", hint="name one with --machine")
    return same[0].name


def _product(scenario: Scenario) -> str:
    return str(scenario.gpus[0].readings["name"]) if scenario.gpus else ""


def _is_mig(scenario: Scenario) -> bool:
    return scenario.gpus[0].readings.get("mig_mode") == "enabled"


def report(path: Path, machine: str | None, everything: bool) -> bool:
    """Print how the capture compares; True where no difference of structure is left.

    Raises:
        UsageError: the file is no capture, or there is no machine to hold it against.
    """
    try:
        # The user names the file, and it has no entities.
        root = ElementTree.fromstring(path.read_text())  # noqa: S314
    except (OSError, ElementTree.ParseError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no output of nvidia-smi -q -x: {error}") from error
    if root.tag != "nvidia_smi_log" or root.find("gpu") is None:
        raise UsageError(f"{path} is no output of nvidia-smi -q -x with a GPU in it")
    scenario = load_scenario(machine or machine_for(root))
    elements = root.findall("gpu")
    pairs = list(zip(elements, scenario.gpus, strict=False))
    comparisons = [comparison for element, gpu in pairs for comparison in compare(element, gpu)]
    print(f"{path.name}: {len(elements)} GPU(s), driver {root.findtext('driver_version')}")
    print(
        f"  against {scenario.name}: {len(scenario.gpus)} GPU(s), driver"
        f" {scenario.nvml.driver_version}; {len(pairs)} compared"
    )
    for kind in ("fixed", "setting", "live", "identity"):
        outcomes = Counter(comparison.outcome for comparison in comparisons if comparison.field.kind == kind)
        print(f"  {kind:<9}" + ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in sorted(outcomes)))
    for line in sorted(
        {_line(comparison) for comparison in comparisons if _is_shown(comparison, everything)}
    ):
        print(f"    {line}")
    return not any(comparison.is_structural for comparison in comparisons)


def _is_shown(comparison: Comparison, everything: bool) -> bool:
    if comparison.is_structural or everything:
        return True
    return comparison.outcome == "differs" and comparison.field.kind in ("fixed", "setting")


def _line(comparison: Comparison) -> str:
    sides = {
        "only_here": f"here {comparison.ours!r}, N/A in the capture",
        "only_in_capture": f"N/A here, {comparison.theirs!r} in the capture",
        "not_in_capture": "not in the capture",
        "differs": f"here {comparison.ours!r}, in the capture {comparison.theirs!r}",
        "same": f"{comparison.ours!r}",
    }
    return f"{comparison.outcome:<15} {comparison.field.reading}: {sides[comparison.outcome]}"


def main(arguments: list[str]) -> int:
    """The exit status: 0 where no difference of structure was found, 1 where one was, 2 for misuse."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("captures", nargs="+", type=Path, metavar="CAPTURE.xml")
    parser.add_argument("--machine", help="the base machine to hold it against")
    parser.add_argument("--all", action="store_true", help="print every field of every GPU")
    options = parser.parse_args(arguments)
    try:
        agreed = [report(path, options.machine, options.all) for path in options.captures]
    except UsageError as error:
        print(f"{error.message}{': ' if error.hint else ''}{error.hint}", file=sys.stderr)
        return int(error.exit_status)
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
