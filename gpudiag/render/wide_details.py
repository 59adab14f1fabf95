"""The parts of a GPU that have fields of their own, as `gpudiag list --wide` says them."""

from dataclasses import fields
from typing import Any

from gpudiag.model.device_details import FabricState, PcieErrorCounts, PeerAccess, ThrottleSeconds
from gpudiag.model.reading import Missing
from gpudiag.units import format_seconds


def say_throttle_seconds(times: ThrottleSeconds) -> str:
    """For how long each cause held the clocks back; causes that never did are left out."""
    known = _known(times)
    said = [f"{name.replace('_', ' ')} {format_seconds(value)}" for name, value in known if value > 0]
    return ", ".join(said) or "nothing"


def say_pcie_errors(counts: PcieErrorCounts) -> str:
    """Each count that is not 0."""
    said = [f"{value} {name.replace('_', ' ')}" for name, value in _known(counts) if value > 0]
    return ", ".join(said) or "no"


def say_fabric(fabric: FabricState) -> str:
    """Where the registration stands, and what the fabric says against the GPU."""
    health = () if isinstance(fabric.health, Missing) else (fabric.health.replace("_", " "),)
    faults = () if isinstance(fabric.faults, Missing) else fabric.faults
    words = (fabric.state.replace("_", " "), fabric.status, *health, *faults)
    return ", ".join(word.replace("_", " ") for word in words)


def say_peers(peers: tuple[PeerAccess, ...]) -> str:
    """How many other GPUs this one can read directly, and how many of those by NVLink."""
    readable = sum(1 for peer in peers if peer.read == "ok")
    linked = sum(1 for peer in peers if peer.nvlink == "ok")
    return f"reads {readable} of {len(peers)} other GPUs, {linked} by NVLink" if peers else ""


def _known(noun: Any) -> list[tuple[str, Any]]:
    values = ((field.name, getattr(noun, field.name)) for field in fields(noun))
    return [(name, value) for name, value in values if not isinstance(value, Missing)]
