"""The limits of speeds, as shares, and the speeds that others have published, by speeds.toml."""

from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table

_TABLE = "interconnects.toml"


@dataclass(frozen=True, slots=True)
class SpeedLimit:
    """The shares of an expected speed below which an opinion warns and fails; `fail` None: it never fails."""

    name: str
    warn: float
    source: str
    fail: float | None = None


@dataclass(frozen=True, slots=True)
class PublishedSpeed:
    """A floor or a figure that others published for one test on one kind of machine.

    `value` and `ideal`, what the device's own readings allow, are bytes or operations per second.
    """

    test: str
    setup: str
    kind: str  # floor or measured
    value: float
    ideal: float
    source: str
    models: tuple[str, ...] = ()  # NVML's name of such GPUs
    gpus: int = 1
    algorithm: str = ""  # NCCL's, where the figure is for a particular one: ring or NVLS
    dtype: str = ""
    power_capped: bool = False


@cache
def speed_limits() -> dict[str, SpeedLimit]:
    """Every limit of a measured speed, by its name."""
    return {entry["name"]: SpeedLimit(**entry) for entry in read_table("speeds.toml")["limit"]}


@cache
def published_speeds() -> tuple[PublishedSpeed, ...]:
    """Every published floor and figure."""
    entries = read_table("speeds.toml")["published"]
    return tuple(PublishedSpeed(**{**entry, "models": tuple(entry.get("models", ()))}) for entry in entries)


def pcie_bytes_per_second(generation: int, width: int) -> float:
    """Bytes per second of a PCIe link of that generation and width, in one direction, before packet overhead.

    Raises:
        KeyError: there is no such generation.
    """
    rates: dict[str, float] = read_table(_TABLE)["pcie_lane_bytes_per_second"]
    return rates[str(generation)] * width


def nvlink_bytes_per_second(version: int) -> float:
    """Bytes per second of one NVLink of that version, in one direction.

    Raises:
        KeyError: there is no such version.
    """
    rates: dict[str, float] = read_table(_TABLE)["nvlink_bytes_per_second"]
    return rates[str(version)]


def nvlink_payload(line_bytes_per_second: float) -> float:
    """Bytes of data per second on a link of that line rate, as NVML gives it: the rest is coding.

    The line rate itself where every version of NVLink carries more.
    """
    rates: dict[str, float] = read_table(_TABLE)["nvlink_bytes_per_second"]
    return max(
        (rate for rate in rates.values() if rate <= line_bytes_per_second), default=line_bytes_per_second
    )
