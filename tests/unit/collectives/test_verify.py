"""What is found wrong in a buffer, and how it is described."""

import torch

from gpudiag.collectives.inspection import find_wrong


def test_equal_buffers_have_nothing_wrong() -> None:
    assert find_wrong(torch.arange(5.0), torch.arange(5.0)) is None


def test_minus_zero_is_not_zero() -> None:
    found, expected = torch.tensor([0.0, -0.0]), torch.zeros(2)
    offsets = find_wrong(found, expected)
    assert offsets is not None
    wrong = offsets.elements
    assert (wrong.count, wrong.first_offset, wrong.xor_mask) == (1, 1, 0x80000000)


def test_runs_and_masks_of_several_wrong_elements() -> None:
    expected = torch.zeros(100, dtype=torch.int32)
    found = expected.clone()
    found[[10, 11, 12, 40]] = torch.tensor([1, 2, 1, -1], dtype=torch.int32)
    offsets = find_wrong(found, expected)
    assert offsets is not None
    wrong = offsets.elements
    assert wrong.count == 4
    assert (wrong.first_offset, wrong.last_offset) == (10, 40)
    assert wrong.run_length == 3
    assert wrong.xor_mask == 1
    assert wrong.flipped_bits == 0xFFFFFFFF


def test_nothing_right_at_all() -> None:
    found, expected = torch.full((7,), 3, dtype=torch.uint8), torch.zeros(7, dtype=torch.uint8)
    offsets = find_wrong(found, expected)
    assert offsets is not None
    wrong = offsets.elements
    assert (wrong.count, wrong.run_length, wrong.flipped_bits) == (7, 7, 3)


def test_infinities_are_compared_by_their_bits() -> None:
    found = torch.tensor([float("inf"), float("nan")], dtype=torch.float64)
    assert find_wrong(found, found.clone()) is None


def test_a_tolerance_counts_neighbouring_floats() -> None:
    expected = torch.tensor([1.0, -1.0, 0.0, 100.0])
    near = torch.nextafter(torch.nextafter(expected, expected + 1), expected + 1)
    assert find_wrong(near, expected) is not None
    assert find_wrong(near, expected, 2) is None
    offsets = find_wrong(torch.nextafter(near, expected + 1), expected, 2)
    assert offsets is not None
    assert offsets.offsets.tolist() == [0, 1, 2, 3]


def test_a_tolerance_does_not_take_a_wrong_sign() -> None:
    offsets = find_wrong(torch.tensor([-2.0, 2.0]), torch.tensor([2.0, 2.0]), 2)
    assert offsets is not None
    assert offsets.offsets.tolist() == [0]


def test_eight_bit_floats_have_a_tolerance_too() -> None:
    expected = torch.tensor([-1.0, 1.0]).to(torch.float8_e4m3fn)
    near = torch.tensor([-1.125, 1.125]).to(torch.float8_e4m3fn)
    assert find_wrong(near, expected, 1) is None
    assert find_wrong(near, expected) is not None


def test_of_a_wholly_wrong_buffer_few_offsets_are_kept_and_all_are_counted() -> None:
    length = 300_000
    found, expected = torch.full((length,), 5, dtype=torch.uint8), torch.zeros(length, dtype=torch.uint8)
    found[-1] = 0x80
    wrong = find_wrong(found, expected)
    assert wrong is not None
    elements = wrong.elements
    assert (elements.count, elements.first_offset, elements.last_offset) == (length, 0, length - 1)
    assert (elements.xor_mask, elements.flipped_bits) == (5, 0x85)
    assert len(wrong.offsets) < length // 4
