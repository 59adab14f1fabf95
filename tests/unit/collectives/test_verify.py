"""What `compare` says of a wrong buffer."""

import torch

from gpudiag.collectives.verify import compare


def test_equal_buffers_have_nothing_wrong() -> None:
    assert compare(torch.arange(5.0), torch.arange(5.0)) is None


def test_minus_zero_is_not_zero() -> None:
    wrong = compare(torch.tensor([0.0, -0.0]), torch.zeros(2))
    assert wrong is not None
    assert (wrong.count, wrong.first_offset, wrong.xor_mask) == (1, 1, 0x80000000)


def test_runs_and_masks_of_several_wrong_elements() -> None:
    expected = torch.zeros(100, dtype=torch.int32)
    found = expected.clone()
    found[[10, 11, 12, 40]] = torch.tensor([1, 2, 1, -1], dtype=torch.int32)
    wrong = compare(found, expected)
    assert wrong is not None
    assert wrong.count == 4
    assert (wrong.first_offset, wrong.last_offset) == (10, 40)
    assert wrong.run_length == 3
    assert wrong.xor_mask == 1
    assert wrong.flipped_bits == 0xFFFFFFFF


def test_nothing_right_at_all() -> None:
    wrong = compare(torch.full((7,), 3, dtype=torch.uint8), torch.zeros(7, dtype=torch.uint8))
    assert wrong is not None
    assert (wrong.count, wrong.run_length, wrong.flipped_bits) == (7, 7, 3)


def test_infinities_are_compared_by_their_bits() -> None:
    found = torch.tensor([float("inf"), float("nan")], dtype=torch.float64)
    assert compare(found, found.clone()) is None
