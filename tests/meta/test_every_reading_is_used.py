"""What is gathered is used: each reading and parsed field is judged by a check, shown to people, or listed
here with the reason.

A field that nobody looks at is a fault that nobody finds: the license of a virtual GPU was read for a year
and judged by nothing. The walk takes every field of the nouns that the probes fill, and looks for its name in
the code of the checks, then in that of all outputs.
"""

import ast
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from gpudiag.model import device, host, host_state, kernel_log
from gpudiag.model.device import Device, DeviceId

PACKAGE = Path(__file__).parents[2] / "gpudiag"
_JUDGING = ("checks", "lint", "explain")
_SHOWING = tuple(
    "render cli service runs store sampler reference/reading_names.py probe/sources.py probe/torch".split()
)
_GATHERED: tuple[ModuleType, ...] = (device, host, host_state, kernel_log)

# Readings of a GPU that no check judges, and why; each is shown all the same.
_TRAFFIC = "traffic of a healthy GPU may be any number; what it must be able to move is measured"
_LOAD = "what a job makes of the GPU is the job's; no number of it is a fault"
_OF_PRODUCT = "a property of the product, against which other readings are held or which is shown"
NOT_JUDGED: dict[str, str] = {
    "cuda_ordinal": "how CUDA numbers the GPUs is a setting; source.agreement judges the order",
    "temperature_gpu_max_celsius": "the highest temperature for full speed; the slowdown limit is judged",
    "temperature_shutdown_celsius": "a GPU that hot is off; the slowdown limit below it is judged",
    **dict.fromkeys(
        ("graphics_clock_max_mhz", "power_limit_max_watts", "power_limit_min_watts"), _OF_PRODUCT
    ),
    **dict.fromkeys(
        ("memory_clock_application_mhz", "memory_clock_application_default_mhz"),
        "few GPUs allow another memory clock; the graphics clock that goes with it is judged",
    ),
    **dict.fromkeys(
        (
            "dram_activity_percent",
            "fp16_activity_percent",
            "fp32_activity_percent",
            "fp64_activity_percent",
            "graphics_activity_percent",
            "sm_occupancy_percent",
        ),
        _LOAD,
    ),
    **dict.fromkeys(
        tuple(
            """
    nvlink_received_bytes nvlink_received_bytes_per_second nvlink_throughput_bytes_per_second
    nvlink_transmitted_bytes nvlink_transmitted_bytes_per_second pcie_received_bytes_per_second
    pcie_transmitted_bytes_per_second
    """.split()
        ),
        _TRAFFIC,
    ),
}
# Fields that are neither judged nor shown by name, and why.
_OF_ECC = "ecc.corrected judges the sum; a place is named for uncorrected ones alone"
_OF_LINK = "the GPU's own side is judged by NVML's readings of the same link (pcie.width, pcie.generation)"
_OF_ERRORS = "pcie.errors judges the sums by severity; these say which kind, in JSON"
NOT_USED: dict[str, str] = {
    "EccLocation.corrected_aggregate": _OF_ECC,
    "EccLocation.corrected_volatile": _OF_ECC,
    "HostState.shared_memory_available_bytes": "its size is judged; what is free of it changes with each job",
    "KernelEvent.boot_seconds": "the store tells by it repeats of one event in two reads of a log",
    "KernelEvent.caused_by_xid": "the Xid that is named as the cause is an event of its own, and judged itself",
    "NetworkInterface.mtu": "hosts are compared by what they exchange; one host's size alone is no fault",
    "NetworkInterface.speed_mbit_per_second": "virtual interfaces give any number; the InfiniBand port's rate is judged",
    **dict.fromkeys(
        ("PciDevice.link_generation", "PciDevice.link_generation_max", "PciDevice.link_width",
            "PciDevice.link_width_max"),
        _OF_LINK,
    ),
    **dict.fromkeys(
        ("PcieErrorCounts.bad_dllp", "PcieErrorCounts.bad_tlp", "PcieErrorCounts.naks_received",
            "PcieErrorCounts.naks_sent"),
        _OF_ERRORS,
    ),
    "TorchFacts.gloo_available": "a rank that needs it says so when it starts",
}  # fmt: skip


@cache
def words_of(*folders: str) -> frozenset[str]:
    """Every attribute, keyword and string in the code of these folders."""
    found: set[str] = set()
    for folder in folders:
        place = PACKAGE / folder
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            if "examples" in path.parts:  # scripts that a rule of the linter shows
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Attribute):
                    found.add(node.attr)
                elif isinstance(node, ast.keyword) and node.arg:
                    found.add(node.arg)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.update(node.value.replace(",", " ").split())
    return frozenset(found)


def gathered() -> list[tuple[str, str]]:
    """Every field of every noun that the probes fill, as (noun, field)."""
    return [
        (noun.__name__, one.name)
        for module in _GATHERED
        for noun in vars(module).values()
        if isinstance(noun, type) and is_dataclass(noun) and noun.__module__ == module.__name__
        for one in fields(noun)
    ]


def test_every_reading_of_a_gpu_is_judged_or_listed_with_the_reason():
    judged = words_of("checks")
    names = [one.name for noun in (Device, DeviceId) for one in fields(noun)]
    unjudged = {name for name in names if name not in judged}
    assert unjudged == set(NOT_JUDGED)
    shown = words_of(*_SHOWING, "reference/readings")
    assert not [name for name in unjudged if name not in shown], "neither judged nor shown"
    assert all(len(reason.split()) > 3 for reason in NOT_JUDGED.values())


def test_every_parsed_field_is_judged_shown_or_listed_with_the_reason():
    used = words_of(*_JUDGING, *_SHOWING, "reference/readings")
    unused = {f"{noun}.{name}" for noun, name in gathered() if name not in used}
    assert unused <= set(NOT_USED)
    assert set(NOT_USED) <= {f"{noun}.{name}" for noun, name in gathered()}, "no such field"
    assert len(gathered()) > 200


def test_the_license_of_a_virtual_gpu_is_judged():
    assert "vgpu_license" in words_of("checks")
