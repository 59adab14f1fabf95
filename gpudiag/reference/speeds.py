"""The shares that speeds are held to, and the speeds that others have published, by speeds.toml."""

from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table


@dataclass(frozen=True, slots=True)
class SpeedLimit:
    """The shares of an expected speed below which an opinion warns and fails; `fail` None: it never does."""

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
    models: tuple[str, ...] = ()  # what NVML calls such GPUs
    gpus: int = 1
    algorithm: str = ""  # of NCCL, where the figure is of one in particular: ring or NVLS
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
