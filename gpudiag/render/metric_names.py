"""What a row of the table of metrics is: one metric of a GPU, with its names in three vocabularies."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gpudiag.model.device import Device

# One sample of a device: the labels beside those of the device, and the value in the own unit.
Samples = Callable[[Device], Iterator[tuple[dict[str, str], float]]]


@dataclass(frozen=True, slots=True)
class DcgmName:
    """The name that dcgm-exporter has for one sample of a metric, its own unit, and which labels it is for."""

    name: str
    kind: str
    text: str
    scale: float = 1.0
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OtelName:
    """The OpenTelemetry name, unit and attributes of one sample of a metric."""

    name: str
    unit: str
    attributes: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a GPU."""

    name: str
    kind: str  # gauge or counter
    text: str
    samples: Samples
    dcgm: tuple[DcgmName, ...] = ()
    otel: tuple[OtelName, ...] = ()
    core: bool = True  # False: constant or said by another metric; in the full scrape alone
    rare: frozenset[str] = frozenset()  # label values of samples that are in the full scrape alone
