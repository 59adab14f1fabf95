import pytest

from gpudiag.errors import UsageError
from gpudiag.runs.advise import parse_parameters
from gpudiag.training.advise import advise
from gpudiag.units import GIB

H100 = 80 * GIB


@pytest.mark.parametrize(
    ("parameters", "gpus", "first"),
    [
        (1_000_000_000, 8, "ddp"),
        (7_000_000_000, 8, "zero1"),
        (13_000_000_000, 8, "zero2"),
        (25_000_000_000, 8, "fsdp2"),
        (70_000_000_000, 8, "zero3"),
        (1_000_000_000, 1, "ddp"),
        (7_000_000_000, 1, "zero3"),
        (1_000_000_000, 0, "ddp"),
    ],
)
def test_the_simplest_strategy_that_fits_comes_first(parameters: int, gpus: int, first: str) -> None:
    advice = advise(parameters, [H100] * gpus)
    assert advice[0].strategy == first
    assert all(advice_.reasons for advice_ in advice)


def test_the_smallest_gpu_decides() -> None:
    assert advise(1_000_000_000, [H100, 12 * GIB])[0].strategy != "ddp"


def test_sizes_are_read_as_people_write_them() -> None:
    assert [parse_parameters(text) for text in ("350M", "7b", "1.5B", "1000")] == [
        350_000_000,
        7_000_000_000,
        1_500_000_000,
        1000,
    ]
    for text in ("", "0", "seven", "7BB", "-1"):
        with pytest.raises(UsageError):
            parse_parameters(text)


def test_memory_that_gpu_and_host_share_is_no_place_to_offload_to() -> None:
    assert "the host's memory" in advise(7_000_000_000, [H100])[0].reasons[1]
    assert "NVMe" in advise(7_000_000_000, [H100], unified=True)[0].reasons[1]


def test_sizes_are_said_as_they_are_written() -> None:
    assert advise(1_500_000_000, [H100])[0].reasons[0].startswith("1.5B parameters take")
