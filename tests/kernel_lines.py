"""The events of kernel logs that a test writes down."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import Reading
from gpudiag.probe.kernel_log.lines import parse_each_line


def parse_kernel_lines(lines: Iterable[tuple[Reading[datetime], str]]) -> Iterator[KernelEvent]:
    """The events in the lines of one log, in order; each line comes with its time."""
    return (event for event in parse_each_line(lines) if event is not None)
