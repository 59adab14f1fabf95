"""What links carry, by interconnects.toml."""

from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table

_TABLE = "interconnects.toml"


@dataclass(frozen=True, slots=True)
class PublishedRate:
    """A floor or a figure that others published for one test on one kind of machine; bytes per second."""

    test: str
    setup: str
    gpus: int
    kind: str  # floor or measured
    bytes_per_second: float
    ideal_bytes_per_second: float
    source: str
    models: tuple[str, ...] = ()  # what NVML calls such GPUs; where they match, the figure is held against
    algorithm: str = ""  # of NCCL, where the figure is of one in particular: ring or NVLS


def pcie_bytes_per_second(generation: int, width: int) -> float:
    """What a PCIe link of that generation and width carries in one direction, before packet overhead.

    Raises:
        KeyError: there is no such generation.
    """
    rates: dict[str, float] = read_table(_TABLE)["pcie_lane_bytes_per_second"]
    return rates[str(generation)] * width


def nvlink_bytes_per_second(version: int) -> float:
    """What one NVLink of that version carries in one direction.

    Raises:
        KeyError: there is no such version.
    """
    rates: dict[str, float] = read_table(_TABLE)["nvlink_bytes_per_second"]
    return rates[str(version)]


@cache
def published_rates() -> tuple[PublishedRate, ...]:
    """Every published floor and figure."""
    entries = read_table(_TABLE)["published"]
    return tuple(PublishedRate(**{**entry, "models": tuple(entry.get("models", ()))}) for entry in entries)
