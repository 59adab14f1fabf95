"""The limits of speeds, as shares, and the speeds that others have published, by speeds.toml."""

from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table

_TABLE = "interconnects.toml"
SUSTAINED = "sustained"  # a kind of PublishedSpeed


@dataclass(frozen=True, slots=True)
class SpeedLimit:
    """The shares of an expected speed below which an opinion warns and fails; `fail` None: it never fails."""

    name: str
    warn: float
    source: str
    fail: float | None = None


@dataclass(frozen=True, slots=True)
class LeastSize:
    """The smallest call that a measured speed is valid for: its seconds, and its size in caches of a GPU."""

    call_seconds: float
    cache_times: int
    source: str


@dataclass(frozen=True, slots=True)
class PublishedSpeed:
    """A floor or figure of one test on one kind of machine, in bytes or operations per second."""

    test: str
    setup: str
    kind: str  # floor or measured; sustained: by gpudiag itself, the lowest of its runs there
    value: float
    ideal: float
    source: str
    models: tuple[str, ...] = ()  # NVML's name of such GPUs
    dtype: str = ""
    power_capped: bool = False
    size: int = 0  # of a matrix product, where the figure is for a particular one
    power_limit_watts: float = 0.0  # of the board that it was measured on
    confirmed: str = ""  # by whom: the date, gpudiag, driver and torch


@cache
def least_size() -> LeastSize:
    """The smallest that a speed may be measured on."""
    return LeastSize(**read_table("speeds.toml")["least"])


@cache
def speed_limits() -> dict[str, SpeedLimit]:
    """Every limit of a measured speed, by its name."""
    return {entry["name"]: SpeedLimit(**entry) for entry in read_table("speeds.toml")["limit"]}


@cache
def published_speeds() -> tuple[PublishedSpeed, ...]:
    """Every published floor and figure."""
    entries = read_table("speeds.toml")["published"]
    return tuple(PublishedSpeed(**{**entry, "models": tuple(entry.get("models", ()))}) for entry in entries)


def sustained_speed(test: str, model: str, dtype: str = "", size: int = 0) -> PublishedSpeed | None:
    """What gpudiag itself has measured on a healthy GPU of that model; None where it has not."""
    return next(
        (
            speed
            for speed in published_speeds()
            if (speed.kind, speed.test, speed.dtype, speed.size) == (SUSTAINED, test, dtype, size)
            and model in speed.models
        ),
        None,
    )


def pcie_bytes_per_second(generation: int, width: int) -> float:
    """Bytes per second of a PCIe link one way, before packet overhead. Raises KeyError: no such one."""
    rates: dict[str, float] = read_table(_TABLE)["pcie_lane_bytes_per_second"]
    return rates[str(generation)] * width


def nvlink_bytes_per_second(version: int) -> float:
    """Bytes per second of one NVLink of that version, one way. Raises KeyError: there is no such version."""
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
