import pytest

from gpudiag.ranks.clock import ClockComparison


def test_nothing_is_known_before_the_first_exchange() -> None:
    assert ClockComparison().offset() is None


def test_the_quickest_exchange_counts() -> None:
    comparison = ClockComparison()
    comparison.add(asked_at=10.0, theirs=1010.4, answered_at=11.0)  # slow: half a second of doubt
    comparison.add(asked_at=20.0, theirs=1020.001, answered_at=20.002)
    comparison.add(asked_at=30.0, theirs=1030.3, answered_at=30.4)
    offset = comparison.offset()
    assert offset is not None
    assert offset.seconds == pytest.approx(1000.0, abs=0.001)
    assert offset.error_seconds == pytest.approx(0.001)


def test_old_exchanges_are_forgotten() -> None:
    comparison = ClockComparison()
    comparison.add(asked_at=0.0, theirs=5.0, answered_at=0.001)
    for turn in range(20):
        comparison.add(asked_at=turn, theirs=turn + 7.0, answered_at=turn + 0.1)
    offset = comparison.offset()
    assert offset is not None
    assert offset.seconds == pytest.approx(7.0, abs=0.1)
