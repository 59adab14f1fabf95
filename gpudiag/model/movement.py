"""Counters that moved while something ran: what may have caused a slow or a failed result."""

from dataclasses import dataclass

from gpudiag.model.evidence import Subject
from gpudiag.model.reading import Reading


@dataclass(frozen=True, slots=True)
class HostCounters:
    """Counters of one host at one moment; all only ever rise until the next boot.

    `steal_seconds` is processor time that the hypervisor gave to others, over all processors;
    `throttled_seconds` what the control group's quota took from its processes.
    """

    tcp_retransmits: Reading[int]  # segments sent again, all interfaces
    tcp_timeouts: Reading[int]  # retransmission timers that ran out
    interface_errors: Reading[int]  # receive and transmit, over all interfaces
    interface_drops: Reading[int]
    steal_seconds: Reading[float]
    throttled_seconds: Reading[float]
    oom_kills: Reading[int]


@dataclass(frozen=True, slots=True)
class Movement:
    """One counter that rose, of which device or host, by how much, and where it was read."""

    subject: Subject
    name: str
    before: float
    after: float
    unit: str
    source: str

    @property
    def rise(self) -> float:
        """By how much it rose."""
        return self.after - self.before
