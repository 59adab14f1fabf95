"""What links carry, by interconnects.toml."""

from gpudiag.reference.tables import read_table

_TABLE = "interconnects.toml"


def pcie_bytes_per_second(generation: int, width: int) -> float:
    """What a PCIe link of that generation and width carries in one direction, before packet overhead.

    Raises:
        KeyError: there is no such generation.
    """
    rates: dict[str, float] = read_table(_TABLE)["pcie_lane_bytes_per_second"]
    return rates[str(generation)] * width


def nvlink_bytes_per_second(version: int) -> float:
    """What one NVLink of that version carries in one direction.

    Raises:
        KeyError: there is no such version.
    """
    rates: dict[str, float] = read_table(_TABLE)["nvlink_bytes_per_second"]
    return rates[str(version)]


def nvlink_payload(line_bytes_per_second: float) -> float:
    """What a link of that line rate, as NVML gives it, carries of data: the rest is coding.

    The rate itself where no version of NVLink carries as little.
    """
    rates: dict[str, float] = read_table(_TABLE)["nvlink_bytes_per_second"]
    return max(
        (rate for rate in rates.values() if rate <= line_bytes_per_second), default=line_bytes_per_second
    )
