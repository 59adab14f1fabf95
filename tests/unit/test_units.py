import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag import units
from gpudiag.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8", 8),
        ("64M", 64 * 1024**2),
        ("64MiB", 64 * 1024**2),
        ("1.5K", 1536),
        ("8g", 8 * 1024**3),
        (" 1 KB ", 1024),
    ],
)
def test_a_size_is_read_as_nccl_tests_reads_it(text, size_bytes):
    assert units.parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "M", "-1", "1e3", "1.0001", "8X", "eight", "nan", "0x10"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="is not a"):
        units.parse_size_bytes(text)


@given(st.integers(min_value=0, max_value=2**50))
def test_every_whole_number_of_bytes_is_a_size(size_bytes):
    assert units.parse_size_bytes(str(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (8, "8 B"),
        (1536, "1.5 KiB"),
        (1024**2, "1 MiB"),
        (85520809984, "79.6 GiB"),
        (2**41, "2 TiB"),
    ],
)
def test_a_size_is_short(size_bytes, text):
    assert units.format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0042, "0.00420"),
        (0.00999999, "0.0100"),
        (0.00421, "0.00421"),
        (1.234, "1.23"),
        (482.4, "482"),
        (9999, "9999"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_a_figure_has_three_significant_digits(value, text):
    assert units.significant(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12e-6, "12 us"),
        (0.0034, "3.4 ms"),
        (1.25, "1.2 s"),
        (90, "90 s"),
        (360, "6 min"),
        (6 * 3600, "6 h"),
        (3 * 86400, "3 d"),
    ],
)
def test_a_duration_is_short(seconds, text):
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("bytes_per_second", "text"),
    [(365e9, "365 GB/s"), (0.1e9, "0.100 GB/s"), (6.57e6, "6.57 MB/s"), (0, "0 MB/s")],
)
def test_a_rate_has_three_figures_and_no_leading_zeros(bytes_per_second: float, text: str) -> None:
    assert units.format_rate(bytes_per_second) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), (" 90s", 90.0), ("1.5m", 90.0), (".5h", 1800.0), ("1e3", 1000.0), ("2d", 172800.0)],
)
def test_a_time_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "nan", "inf", "5x", "5 min", "1:30", "5M"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_seconds(text)
