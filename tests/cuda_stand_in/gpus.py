"""The GPUs that CUDA lists for this process: those of the simulated machine, under CUDA_VISIBLE_DEVICES."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.cuda_stand_in.settings import Settings

# By words of the product's name; NVIDIA's list of compute capabilities.
_CAPABILITIES = (
    ("T4", (7, 5)),
    ("V100", (7, 0)),
    ("A100", (8, 0)),
    ("A10", (8, 6)),
    ("A6000", (8, 6)),
    ("4090", (8, 9)),
    ("L4", (8, 9)),
    ("GB300", (10, 3)),
    ("B200", (10, 0)),
    ("GB10", (12, 1)),
)
_HOPPER = (9, 0)
_UNLISTED = "invalid device ordinal"
_MACHINE_WITHOUT_A_SCENARIO = 8


@dataclass(frozen=True)
class Gpu:
    """One GPU as CUDA shows it; `place` is its number on the machine, whatever this process may see."""

    place: int
    uuid: str
    bus_id: str
    name: str
    memory_total_bytes: int
    context_error: str | None = None

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability that a product of that name has."""
        return next((found for word, found in _CAPABILITIES if word in self.name), _HOPPER)


class NoGpusError(Exception):
    """CUDA does not start on this machine; the words are those of torch."""


def list_gpus(settings: Settings) -> list[Gpu]:
    """The GPUs in the order in which CUDA numbers them for this process.

    Raises:
        NoGpusError: CUDA does not start at all.
    """
    path = settings.torch_document
    on_machine = _plain_machine() if path is None else _read_machine(path)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.startswith("MIG-"):
        return _choose_instance(on_machine, settings.mig_instances, visible.split(",")[0].strip())
    return _choose(on_machine, visible)


def _read_machine(path: str) -> list[Gpu]:
    with open(path) as file:
        document = json.load(file)
    found = document.get("devices", [])
    details = document.get("facts", {}).get("missing_detail", {})
    if not found:
        raise NoGpusError(details.get("context_starts") or "No CUDA GPUs are available")
    # A GPU that NVML counts and CUDA does not list.
    listed = [view for view in found if _UNLISTED not in (_context_error(view) or "")]
    return [_gpu(place, view) for place, view in enumerate(listed)]


def _context_error(view: dict[str, Any]) -> str | None:
    error: str | None = view["missing_detail"].get("context_starts")
    return error


def _gpu(place: int, view: dict[str, Any]) -> Gpu:
    return Gpu(
        place=place,
        uuid=str(view["uuid"] or f"GPU-{place:08x}-ffff-ffff-ffff-ffffffffffff"),
        bus_id=str(view["bus_id"] or f"00000000:{place:02x}:00.0"),
        name=str(view["name"] or "a GPU without a context"),
        memory_total_bytes=view["memory_total_bytes"] or 0,
        context_error=_context_error(view),
    )


def _plain_machine() -> list[Gpu]:
    return [
        Gpu(
            place,
            f"GPU-{place:08x}-0000-0000-0000-000000000000",
            f"00000000:{place + 1:02x}:00.0",
            "NVIDIA H100 80GB HBM3",
            80 << 30,
        )
        for place in range(_MACHINE_WITHOUT_A_SCENARIO)
    ]


def _choose_instance(
    on_machine: Sequence[Gpu], instances: Sequence[Mapping[str, Any]], named: str
) -> list[Gpu]:
    """The MIG instance of that name: a process has one, whatever more the variable lists."""
    chosen = [instance for instance in instances if instance["uuid"].startswith(named)]
    if len(chosen) != 1 or not on_machine:
        return []
    (instance,) = chosen
    return [
        replace(
            on_machine[0],
            uuid=instance["uuid"],
            bus_id=instance["bus_id"],
            name=instance["name"],
            memory_total_bytes=instance["memory_total_bytes"],
        )
    ]


def _choose(on_machine: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, as far as the first that is not there."""
    if visible is None:
        return list(on_machine)
    chosen: list[Gpu] = []
    for part in (part.strip() for part in visible.split(",")):
        if part.isdigit():
            named = on_machine[int(part) : int(part) + 1]
        else:
            named = [gpu for gpu in on_machine if part and gpu.uuid.startswith(part)]
        if len(named) != 1:
            break
        chosen += named
    return chosen
