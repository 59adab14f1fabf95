"""The only conversions: sizes and rates as people write them, to and from base units.

Inside gpudiag a size is in bytes, a rate in bytes per second, a time in seconds. Sizes are binary
(1 KiB = 1024 bytes, the way memory and nccl-tests sizes are counted); rates are decimal
(1 GB/s = 1e9 bytes per second, the way nccl-tests and link data sheets count).
"""

import re

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

BYTES_PER_GB = 1_000_000_000
BYTES_PER_MB = 1_000_000
MILLIWATTS_PER_WATT = 1000
MILLIJOULES_PER_JOULE = 1000
JOULES_PER_KWH = 3_600_000

_SIZE_FACTORS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}
_SIZE_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)

_TIME_FACTORS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME_PATTERN = re.compile(r"(-?[0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([smhd]?)")


def parse_size_bytes(text: str) -> int:
    """Bytes for a size such as `8`, `64M`, `1.5GiB`; K, M, G and T are binary, as in nccl-tests.

    Raises:
        UsageError: the text is not a size, or not a whole number of bytes.
    """
    # Imported here: the probes' children load this file for its factors and pay for every import.
    from gpudiag.errors import UsageError

    match = _SIZE_PATTERN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size", hint="write it as 8, 64K, 1M or 8G")
    size = float(match[1]) * _SIZE_FACTORS[match[2].upper()]
    if size != int(size):
        raise UsageError(f"{text!r} is not a whole number of bytes", hint="write it as 8, 64K or 1M")
    return int(size)


def parse_seconds(text: str) -> float:
    """Seconds for a time such as `90`, `90s`, `5m`, `1.5h` or `1d`, as sleep and timeout take it.

    Raises:
        UsageError: the text is not a time.
    """
    from gpudiag.errors import UsageError  # as in parse_size_bytes

    match = _TIME_PATTERN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a time", hint="write it as 90, 90s, 5m or 2h")
    return float(match[1]) * _TIME_FACTORS[match[2]]


def format_size(size_bytes: float) -> str:
    """A size as people read it, binary and short: `512 B`, `64 KiB`, `79.6 GiB`."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size_bytes) >= factor:
            return f"{_short(size_bytes / factor)} {unit}"
    return f"{_short(size_bytes)} B"


def format_gib(size_bytes: float) -> str:
    """A number of GiB with one decimal and no unit, for a column headed `GiB`."""
    return f"{size_bytes / GIB:.1f}"


def format_rate(bytes_per_second: float) -> str:
    """A rate with three significant figures in GB/s (1e9 bytes per second), or MB/s below 0.1 GB/s."""
    if bytes_per_second < 0.1 * BYTES_PER_GB:
        return f"{significant(bytes_per_second / BYTES_PER_MB)} MB/s"
    return f"{significant(bytes_per_second / BYTES_PER_GB)} GB/s"


def format_seconds(seconds: float) -> str:
    """A duration as people read it: `0 s`, `12 us`, `3.4 ms`, `1.2 s`, `6 min`, `6 h`, `3 d`."""
    if seconds == 0:
        return "0 s"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 1:
        return f"{_short(seconds)} s"
    if seconds >= 1e-3:
        return f"{_short(seconds * 1e3)} ms"
    return f"{_short(seconds * 1e6)} us"


def significant(value: float) -> str:
    """`value` with three significant figures and no exponent: `0.00420`, `1.23`, `482`."""
    if value == 0:
        return "0"
    if value - value != 0:  # not finite: it has no digits
        return str(value)
    exponent = int(f"{value:.2e}".partition("e")[2])  # of the rounded value: 0.00999.. is 0.0100
    return f"{value:.{max(0, 2 - exponent)}f}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"
