"""What is known of one machine at one moment, whoever gave it: this process, a service, a recording."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpudiag.model.finding import Finding
from gpudiag.model.reading import Missing, Reading
from gpudiag.model.service import Live, LiveDevice

POINTS = 240  # of each series: more than the widest chart shows
# What has a chart: the reading, as it stands in a tick.
SERIES = (
    "utilization_percent",
    "sm_activity_percent",
    "tensor_activity_percent",
    "memory_used_bytes",
    "power_draw_watts",
    "temperature_celsius",
)
Series = Mapping[str, tuple[float | None, ...]]
_NONE: Mapping[str, Series] = {}


@dataclass(frozen=True, slots=True)
class Frame:
    """A machine as it was received last.

    `problem` is why there is nothing newer, `history` has the series of each GPU by its key.
    """

    name: str
    live: Live | None = None
    findings: tuple[Finding, ...] = ()
    history: Mapping[str, Series] = field(default_factory=dict)
    problem: str | None = None
    received_at: float | None = None  # Unix time
    is_here: bool = True  # its processes are this machine's


def key_of_row(row: LiveDevice) -> str:
    """The GPU's key: its UUID, else its bus id or index."""
    parts = (row.id.uuid, row.id.bus_id, row.id.nvml_index)
    return next((str(part) for part in parts if not isinstance(part, Missing)), "")


class History:
    """The last readings of each GPU of one machine, one for each tick."""

    def __init__(self) -> None:
        """None yet."""
        self._series: dict[str, dict[str, deque[float | None]]] = {}

    def add(self, live: Live) -> None:
        """Add a tick's readings; a GPU that is not in it gets a gap."""
        rows = {key_of_row(row): row for row in live.devices}
        for key in rows:
            if key not in self._series:
                self._series[key] = {name: deque(maxlen=POINTS) for name in SERIES}
        for key, of_gpu in self._series.items():
            row = rows.get(key)
            for name, values in of_gpu.items():
                values.append(None if row is None else _number(getattr(row, name)))

    def put_before(self, key: str, series: Mapping[str, tuple[float | None, ...]]) -> None:
        """Put older readings of a GPU before those that are there."""
        known = self._series.setdefault(key, {name: deque(maxlen=POINTS) for name in SERIES})
        for name, values in known.items():
            room = POINTS - len(values)
            older = series.get(name, ())
            values.extendleft(reversed(older[-room:] if room else ()))

    def copied(self) -> Mapping[str, Series]:
        """The series as they are now."""
        return {
            key: {name: tuple(values) for name, values in of_gpu.items()}
            for key, of_gpu in self._series.items()
        }


def _number(reading: Reading[int] | Reading[float]) -> float | None:
    return None if isinstance(reading, Missing) else float(reading)
