"""What the user has chosen to see: pure values that keys and the mouse change."""

from dataclasses import dataclass, replace

from gpudiag.compat import Self

# The orders of processes; those of numbers begin with the largest.
SORTS = ("gpu", "pid", "user", "memory", "sm", "cpu", "time", "command")
LARGEST_FIRST = ("memory", "sm", "cpu", "time")
# What the chart of a GPU shows where there is room for one.
CHARTS = {
    "utilization_percent": "UTIL",
    "sm_activity_percent": "SM",
    "tensor_activity_percent": "TENSOR",
    "memory_used_bytes": "MEMORY",
    "power_draw_watts": "POWER",
    "temperature_celsius": "TEMP",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The user's choice: what the view shows, and where the cursor is.

    `host` is the machine that is shown, `gpu` the only one whose processes are, `finding` is under the
    cursor.
    """

    host: str | None = None
    sort: str = SORTS[0]
    is_reversed: bool = False
    filter: str = ""
    is_tree: bool = True
    chart: str = next(iter(CHARTS))
    gpu: str | None = None
    finding: str | None = None
    is_paused: bool = False
    note: str = ""  # of a recording or a replay, in the first line

    def with_sort(self, sort: str) -> Self:
        """Sorted by that; the other way round where it was so already."""
        if sort == self.sort:
            return replace(self, is_reversed=not self.is_reversed)
        return replace(self, sort=sort, is_reversed=False)

    def with_next_sort(self) -> Self:
        """Sorted by the next of the orders."""
        return replace(self, sort=SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)], is_reversed=False)

    def with_next_chart(self) -> Self:
        """With the next of the charts."""
        names = tuple(CHARTS)
        return replace(self, chart=names[(names.index(self.chart) + 1) % len(names)])
