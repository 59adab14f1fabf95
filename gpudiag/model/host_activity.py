"""What a host is doing: its processors, memory, network and disks, between the last two looks."""

from gpudiag.model.codec import noun
from gpudiag.model.reading import NOT_ASKED, Reading


@noun
class HostActivity:
    """Load of one host; rates and shares are means between the last two looks, which the first look has not.

    Network: all interfaces of hardware, or all but the loopback where none has hardware. Disks: whole ones.
    """

    processors_busy_percent: Reading[float]  # of all processors together
    processors_waiting_percent: Reading[float]  # idle while a disk is waited for
    load_average: Reading[float]  # over one minute
    memory_total_bytes: Reading[int]
    memory_available_bytes: Reading[int]
    swap_used_bytes: Reading[int]
    network_received_bytes_per_second: Reading[float]
    network_transmitted_bytes_per_second: Reading[float]
    disk_read_bytes_per_second: Reading[float]
    disk_written_bytes_per_second: Reading[float]
    uptime_seconds: Reading[float] = NOT_ASKED  # since the kernel started
