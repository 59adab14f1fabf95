import pytest

from gpudiag.ranks.diagnosis.evidence import format_ranks, signal_name


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([0], "0"), ([0, 1, 2, 3], "0-3"), ([6, 0, 1, 2], "0-2, 6"), ([1, 3, 5], "1, 3, 5"), ([], "")],
)
def test_ranks_are_written_as_spans(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


def test_signals_have_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(40) == "signal 40"
