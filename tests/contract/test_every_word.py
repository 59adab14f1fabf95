"""Every word for what NVML answers in numbers, on simulated GPUs: no output may lack one of them.

Each GPU of a machine says another word of each enumeration, and then a number that has none yet. What the
commands, the metrics, the schema and nvidia-smi make of it is held against the enumeration itself.
"""

import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from gpudiag.model.device import Device, FabricState, Snapshot, ThrottleSeconds
from gpudiag.model.documents import from_document
from gpudiag.model.reading import Missing
from gpudiag.reference.vocabulary import (
    ACTIONS_IN_NVIDIA_SMI,
    ARCHITECTURES,
    BRANDS,
    COMPUTE_MODES,
    COSTLY_REASONS,
    ENABLE_STATES,
    EVENT_REASONS,
    FABRIC_FAULTS,
    FABRIC_HEALTH,
    FABRIC_MISCONFIGURATIONS,
    FABRIC_STATES,
    PEER_PATHS,
    PEER_STATUSES,
    PERFORMANCE_LIMITS,
    REASONS_IN_NVIDIA_SMI,
    RECOVERY_ACTIONS,
    number_of,
    reason_mask,
)
from gpudiag.render.metrics_dcgm import render_dcgm
from gpudiag.render.metrics_native import ServiceNumbers, render_metrics
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.scenario import SimulatedGpu
from tests.cli.simulated import run_on, simulated_machine

_SCHEMA = Path(__file__).parents[2] / "docs/schemas/gpudiag.snapshot-1.json"
_NUMBERS = ServiceNumbers("ok", True, 1.0, 0.1, 0, 0, 0, "ok")
_NO_WORD = "unknown_29"
# Readings of `Device`: what the GPUs say, one after the other.
_SAID: dict[str, tuple[Any, ...]] = {
    "recovery_action": (*RECOVERY_ACTIONS, _NO_WORD),
    "clocks_event_reasons": (*([reason] for reason in EVENT_REASONS), ["bit_29"], []),
    "compute_mode": (*COMPUTE_MODES, _NO_WORD),
    "architecture": (*filter(None, ARCHITECTURES), _NO_WORD),
    "brand": (*filter(None, BRANDS), _NO_WORD),
    "ecc_mode": ENABLE_STATES,
    "persistence_mode": ENABLE_STATES,
}
_FABRIC_SAID: dict[str, tuple[Any, ...]] = {
    "state": (*filter(None, FABRIC_STATES), _NO_WORD),
    "health": (*filter(None, FABRIC_HEALTH), _NO_WORD),
    "faults": tuple([fault] for fault in (*FABRIC_FAULTS, *filter(None, FABRIC_MISCONFIGURATIONS))),
}
_LIMITS = {limit: 10.0 + number for limit, number in PERFORMANCE_LIMITS.items()}  # seconds
_GPU_COUNT = max(map(len, (*_SAID.values(), *_FABRIC_SAID.values())))


@dataclass(frozen=True, slots=True)
class Told:
    """One machine in every output."""

    snapshot: Snapshot
    document: dict[str, Any]
    wide: str
    nvidia_smi: list[ElementTree.Element]

    @property
    def gpus(self) -> list[Device]:
        """Those that NVML lists; the base machine's PCI bus has others."""
        listed = (device for device in self.snapshot.devices if device.responding is True)
        return sorted(listed, key=lambda device: str(device.id.uuid))


def saying(gpu: SimulatedGpu, number: int) -> SimulatedGpu:
    """That GPU, with the words of this number's turn."""
    said = {name: words[number % len(words)] for name, words in _SAID.items()}
    fabric = {name: words[number % len(words)] for name, words in _FABRIC_SAID.items()}
    peers = [
        {"bus_id": bus_id(1 + other), "path": path, "read": status, "nvlink": status}
        for other, (path, status) in enumerate(zip(cycle(PEER_PATHS), PEER_STATUSES, strict=False))
    ]
    readings = {
        **gpu.readings,
        **said,
        "uuid": f"GPU-00000000-0000-0000-0000-0000000000{number:02}",
        "bus_id": bus_id(number),
        "nvml_index": number,
        "throttle_seconds": _LIMITS,
        "fabric": {**gpu.readings["fabric"], **fabric},
    }
    return replace(gpu, readings=readings | ({"peers": peers} if number == 0 else {}), minor_number=number)


def bus_id(number: int) -> str:
    """The bus id of the GPU of that number."""
    return f"00000000:{number + 16:02x}:00.0"


@pytest.fixture(scope="module")
def told() -> Told:
    """The machine on which everything is said."""
    scenario = load_scenario("b200x8")
    gpus = tuple(saying(gpu, number) for number, gpu in enumerate(islice(cycle(scenario.gpus), _GPU_COUNT)))
    with simulated_machine(replace(scenario, gpus=gpus)) as session:
        listed = run_on(session, "list", "--json", "--deadline", "60")
        wide = run_on(session, "list", "--wide", "--verbose", "--deadline", "60")
        shown = subprocess.run(
            ["nvidia-smi", "-q", "-x"], env=session.environment, capture_output=True, text=True, timeout=60
        )
    snapshot = from_document(listed.document)
    assert isinstance(snapshot, Snapshot)
    return Told(
        snapshot,
        listed.document,
        " ".join(wide.out.split()),
        ElementTree.fromstring(shown.stdout).findall("gpu"),
    )


def turns(words: tuple[Any, ...]) -> Iterable[Any]:
    """What each GPU in turn was made to say."""
    return islice(cycle(words), _GPU_COUNT)


def values(page: str, metric: str, gpu: int, **labels: str) -> list[float]:
    """The samples of that metric about one GPU, with those labels."""
    found = re.findall(rf"^{metric}\{{(.*)\}} (\S+)$", page, re.MULTILINE)
    wanted = [f'gpu="{gpu}"', *(f'{name}="{word}"' for name, word in labels.items())]
    return [float(value) for text, value in found if all(label in text.split(",") for label in wanted)]


@pytest.mark.parametrize("name", _SAID)
def test_the_probe_says_it(told: Told, name: str) -> None:
    expected = [tuple(word) if isinstance(word, list) else word for word in turns(_SAID[name])]
    assert [getattr(device, name) for device in told.gpus] == expected


def test_the_probe_says_what_the_fabric_is_like(told: Told) -> None:
    fabrics = [device.fabric for device in told.gpus if isinstance(device.fabric, FabricState)]
    for name, words in _FABRIC_SAID.items():
        expected = [tuple(word) if isinstance(word, list) else word for word in turns(words)]
        assert [getattr(fabric, name) for fabric in fabrics] == expected


def test_the_probe_says_what_lies_between_gpus(told: Told) -> None:
    peers = told.gpus[0].peers
    assert not isinstance(peers, Missing)
    found = [(peer.read, peer.nvlink) for peer in peers if not isinstance(peer.read, Missing)]
    assert found[: len(PEER_STATUSES)] == [(status, status) for status in PEER_STATUSES]
    assert set(PEER_PATHS) <= {peer.path for peer in peers}


def test_the_schema_allows_it(told: Told) -> None:
    jsonschema.validate(told.document, json.loads(_SCHEMA.read_text()))


@pytest.mark.parametrize("name", _SAID)
def test_the_wide_listing_shows_it(told: Told, name: str) -> None:
    for word in _SAID[name]:
        for part in word if isinstance(word, list) else [word]:
            assert part in told.wide or part.replace("_", " ") in told.wide, part


def test_a_recovery_action_is_a_number_of_the_metrics(told: Told) -> None:
    for full in (False, True):
        page = render_metrics(told.snapshot, _NUMBERS, full=full)
        for number, action in enumerate(turns(_SAID["recovery_action"])):
            expected = [float(number_of(RECOVERY_ACTIONS, action))]
            assert values(page, "gpudiag_gpu_recovery_action", number) == expected, action
        said = next(line for line in page.splitlines() if "HELP gpudiag_gpu_recovery_action" in line)
        for number, action in enumerate(RECOVERY_ACTIONS[1:], start=1):
            assert f"{number} {action.replace('_', ' ').replace('p2p', 'P2P')}".lower() in said.lower()


def test_an_event_reason_is_a_bit_of_the_metrics(told: Told) -> None:
    full, dcgm = render_metrics(told.snapshot, _NUMBERS, full=True), render_dcgm(told.snapshot)
    for number, reasons in enumerate(turns(_SAID["clocks_event_reasons"])):
        mask = [float(reason_mask(tuple(reasons)))]
        assert values(full, "gpudiag_gpu_throttle_mask", number) == mask, reasons
        assert values(dcgm, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", number) == mask, reasons
        for reason in COSTLY_REASONS:
            active = values(full, "gpudiag_gpu_throttle_active", number, reason=reason)
            assert active == [float(reason in reasons)]


def test_a_performance_limit_has_its_seconds_in_the_metrics(told: Told) -> None:
    page, dcgm = render_metrics(told.snapshot, _NUMBERS), render_dcgm(told.snapshot)
    for limit, seconds in _LIMITS.items():
        assert values(page, "gpudiag_gpu_throttle_seconds_total", 0, reason=limit) == [seconds]
        assert values(dcgm, f"DCGM_FI_DEV_{limit.upper()}_VIOLATION", 0) == [seconds * 1e9]
    assert set(ThrottleSeconds.__dataclass_fields__) == set(PERFORMANCE_LIMITS)


def test_nvidia_smi_shows_it(told: Told) -> None:
    actions = [gpu.findtext("gpu_recovery_action") for gpu in told.nvidia_smi]
    assert actions == [ACTIONS_IN_NVIDIA_SMI.get(word, "Unknown") for word in turns(_SAID["recovery_action"])]
    for gpu, reasons in zip(told.nvidia_smi, turns(_SAID["clocks_event_reasons"]), strict=True):
        shown = {element.tag: element.text for element in gpu.iterfind("clocks_event_reasons/*")}
        active = {f"clocks_event_reason_{reason}" for reason in reasons if reason in REASONS_IN_NVIDIA_SMI}
        assert {tag for tag, text in shown.items() if text == "Active"} == active
    for name, tag in (("compute_mode", "compute_mode"), ("persistence_mode", "persistence_mode")):
        shown_words = [gpu.findtext(tag, "").lower() for gpu in told.nvidia_smi]
        assert shown_words == ["unknown" if word == _NO_WORD else word for word in turns(_SAID[name])]
    for name, tag in (("architecture", "product_architecture"), ("brand", "product_brand")):
        for gpu, word in zip(told.nvidia_smi, turns(_SAID[name]), strict=True):
            assert word == _NO_WORD or gpu.findtext(tag) != "Unknown", word


def test_a_listing_by_device_has_them_all(told: Told) -> None:
    """`gpudiag_gpu_info` names the architecture; nothing else of the metrics says a word of these."""
    page = render_metrics(told.snapshot, _NUMBERS)
    for number, word in enumerate(turns(_SAID["architecture"])):
        assert values(page, "gpudiag_gpu_info", number, arch=str(word)) == [1.0]


def test_every_reading_in_words_is_walked() -> None:
    """A reading that is a word of NVML's has its enumeration here, or none."""
    elsewhere = set(
        """
        id name serial vbios_version board_part_number compute_capability pci_subsystem_id
        gsp_firmware_version inforom_version memory_kind responding mig_mode mig_mode_pending
        ecc_mode_pending gsp_firmware_mode gsp_firmware_mode_default vgpu_license
        """.split()
    )
    words = {name for name, field in Device.__dataclass_fields__.items() if "str" in str(field.type)}
    assert words - elsewhere == set(_SAID)
