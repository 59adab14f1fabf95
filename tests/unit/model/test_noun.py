import copy
import pickle
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace

import pytest

from gpudiag.model.codec import noun


@noun
class Pair:
    """Two numbers."""

    left: int
    right: int = 0


@noun
class OtherPair:
    """Two other numbers."""

    left: int
    right: int = 0


def test_a_noun_is_a_dataclass() -> None:
    assert is_dataclass(Pair)
    assert [field.name for field in fields(Pair)] == ["left", "right"]
    assert replace(Pair(1), right=2) == Pair(left=1, right=2)


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), ((1, 2, 3), {}), ((1,), {"left": 1}), ((1,), {"middle": 2}), ((), {"right": 2})],
)
def test_a_noun_takes_each_field_once_and_no_other(values: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="Pair"):
        Pair(*values, **named)


def test_a_noun_can_be_copied_and_sent() -> None:
    pair = Pair(1, 2)
    assert copy.deepcopy(pair) == pickle.loads(pickle.dumps(pair)) == pair


def test_a_noun_is_equal_by_its_fields_and_its_kind() -> None:
    assert Pair(1, 2) == Pair(1, 2)
    assert Pair(1, 2) != Pair(2, 1)
    assert Pair(1, 2) != OtherPair(1, 2)
    assert len({Pair(1, 2), Pair(1, 2), Pair(2, 1)}) == 2


def test_a_noun_shows_its_fields() -> None:
    assert repr(Pair(1)) == "Pair(left=1, right=0)"


def test_a_noun_is_frozen_and_has_no_other_attributes() -> None:
    pair = Pair(1)
    with pytest.raises(FrozenInstanceError):
        pair.left = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del pair.right
    assert not hasattr(pair, "__dict__")


@noun
class Noted:
    """A number with a note that is no part of what it is."""

    number: int
    note: str = field(default="", compare=False)


def test_what_is_not_compared_makes_no_difference() -> None:
    assert Noted(1, "a") == Noted(1, "b") != Noted(2, "a")
    assert hash(Noted(1, "a")) == hash(Noted(1, "b"))
