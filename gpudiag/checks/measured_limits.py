"""How a measured speed is judged: by what the device reports, its peers, its own past, and a table.

Each that there is gives an opinion: a speed to expect, and the shares of it below which it says WARN and
FAIL. The worst opinion counts, and a finding shows them all. A GPU that no table knows is judged by the
first three.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from gpudiag.model.device import Device
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Outcome, worst
from gpudiag.model.reading import Missing
from gpudiag.reference.gpu_models import (
    CORES_PER_MULTIPROCESSOR,
    RATE_OF_DTYPE,
    TENSOR_FLOPS_PER_CLOCK,
    GpuModel,
    find_model,
)
from gpudiag.reference.interconnects import pcie_bytes_per_second

WORDS_PER_CLOCK = 2  # memory moves a word on both edges of its clock
HERTZ_PER_MHZ = 1_000_000


@dataclass(frozen=True, slots=True)
class Shares:
    """Below which shares of the expected speed an opinion warns and fails; None: it never does."""

    warn: float
    fail: float | None


# What is derived from a device's own limits holds for all models: measured against derived, memory copies
# reach 85 to 95 %, pinned copies 85 to 90 %, matrix products 73 to 87 % (published figures in
# reference/gpu_models.toml and interconnects.toml). Floors of large fleets lie at 57 to 78 %.
MEMORY_SHARES = Shares(0.80, 0.65)
HOST_LINK_SHARES = Shares(0.80, 0.65)
PEER_LINK_SHARES = Shares(0.75, 0.60)
MATRIX_SHARES = Shares(0.65, 0.50)
# Identical GPUs differ by up to 5 % by their silicon (stas00/ml-engineering); gpu-fryer warns at 10 %.
PEER_SHARES = Shares(0.90, 0.70)
HISTORY_SHARES = Shares(0.95, None)  # SuperBench: 5 % below the own baseline
TABLE_SHARES = Shares(0.80, None)  # a table may be of another cooling, clock or version: it never fails


@dataclass(frozen=True, slots=True)
class Opinion:
    """A speed to expect, in the unit of what was measured, where it comes from, and how it is held against."""

    origin: str  # derived, peers, history or table
    expected: float
    source: str
    shares: Shares

    def judge(self, measured: float) -> Outcome:
        """What this opinion alone says of a measured speed."""
        if self.shares.fail is not None and measured < self.shares.fail * self.expected:
            return Outcome.FAIL
        return Outcome.WARN if measured < self.shares.warn * self.expected else Outcome.PASS


@dataclass(frozen=True, slots=True)
class SpeedVerdict:
    """The worst opinion on a measured speed, and all of them as evidence; None: there was no opinion."""

    outcome: Outcome | None
    evidence: tuple[Evidence, ...]


def judge_speed(name: str, measured: float, unit: str, opinions: Sequence[Opinion]) -> SpeedVerdict:
    """What the opinions together say of `measured`; without any, nothing is said (never PASS)."""
    if not measured > 0:  # NaN too
        return SpeedVerdict(Outcome.FAIL, (Evidence(name, str(measured), unit, source="measured"),))
    evidence = tuple(
        Evidence(
            name, measured, unit, opinion.shares.warn * opinion.expected,
            f"{opinion.origin}: {opinion.shares.warn:.0%} of {opinion.expected:.4g} {unit} ({opinion.source})",
        )
        for opinion in opinions
    )  # fmt: skip
    if not opinions:
        return SpeedVerdict(
            None, (Evidence(name, measured, unit, source="measured; nothing to hold it against"),)
        )
    return SpeedVerdict(worst(tuple(opinion.judge(measured) for opinion in opinions)), evidence)


def peers_opinion(measured_by_peers: Iterable[float]) -> tuple[Opinion, ...]:
    """What identical GPUs of the machine reached in the same test; nothing where there are fewer than two."""
    values = [value for value in measured_by_peers if value > 0]
    if len(values) < 2:
        return ()
    return (Opinion("peers", median(values), f"median of {len(values)} identical GPUs here", PEER_SHARES),)


def history_opinion(before: Iterable[float]) -> tuple[Opinion, ...]:
    """What this GPU reached before in the same test; nothing where it was never measured."""
    values = [value for value in before if value > 0]
    if not values:
        return ()
    return (Opinion("history", median(values), f"median of {len(values)} earlier runs", HISTORY_SHARES),)


def memory_opinions(device: Device) -> tuple[Opinion, ...]:
    """Bytes per second that the GPU's memory should move: by bus width and clock, and by the data sheet."""
    width, clock = device.memory_bus_width_bits, device.memory_clock_max_mhz
    found = []
    if not isinstance(width, Missing) and not isinstance(clock, Missing):
        expected = WORDS_PER_CLOCK * clock * HERTZ_PER_MHZ * width / 8
        found.append(
            Opinion("derived", expected, f"{width} bits at {clock} MHz, two words a clock", MEMORY_SHARES)
        )
    model = _model(device)
    if model is not None:
        found.append(Opinion("table", model.memory_bytes_per_second, model.source, TABLE_SHARES))
    return tuple(found)


def host_link_opinions(generation: int, width: int) -> tuple[Opinion, ...]:
    """Bytes per second between host and GPU, by the link's generation and width read during the transfer."""
    expected = pcie_bytes_per_second(generation, width)
    return (Opinion("derived", expected, f"PCIe {generation}.0 x{width}", HOST_LINK_SHARES),)


def peer_link_opinions(device: Device) -> tuple[Opinion, ...]:
    """Bytes per second of one direction between two GPUs by NVLink: the links that are up, times their rate."""
    links, rate = device.nvlinks, device.nvlink_bytes_per_second
    if isinstance(links, Missing) or isinstance(rate, Missing):
        return ()
    up = sum(1 for link in links if link.active is True)
    if not up:
        return ()
    return (Opinion("derived", up * rate, f"{up} NVLinks of {rate / 1e9:.1f} GB/s", PEER_LINK_SHARES),)


def matrix_opinions(device: Device, dtype: str) -> tuple[Opinion, ...]:
    """Operations per second of a large matrix product: by processors and highest clock, and by the data sheet."""
    capability, cores, clock = device.compute_capability, device.cuda_cores, device.sm_clock_max_mhz
    found, model = [], _model(device)
    known = not any(isinstance(reading, Missing) for reading in (capability, cores, clock))
    per_clock = TENSOR_FLOPS_PER_CLOCK.get(str(capability))
    if known and per_clock is not None and dtype in RATE_OF_DTYPE and not _is_halved(device):
        multiprocessors = int(str(cores)) // CORES_PER_MULTIPROCESSOR[str(capability)]
        expected = multiprocessors * int(str(clock)) * HERTZ_PER_MHZ * per_clock * RATE_OF_DTYPE[dtype]
        source = f"{multiprocessors} multiprocessors at {clock} MHz, {per_clock} operations a clock"
        found.append(Opinion("derived", expected, source, MATRIX_SHARES))
    if model is not None and dtype in model.dense_flops_per_second:
        found.append(Opinion("table", model.dense_flops_per_second[dtype], model.source, _MATRIX_TABLE))
    return tuple(found)


_MATRIX_TABLE = Shares(MATRIX_SHARES.warn, None)


def _is_halved(device: Device) -> bool:
    """Whether the product accumulates in float32 at half the rate of its architecture."""
    return not isinstance(device.name, Missing) and "GeForce" in device.name


def _model(device: Device) -> GpuModel | None:
    return None if isinstance(device.name, Missing) else find_model(device.name)
