"""`@noun`: a frozen dataclass whose comparison and text are shared instead of generated.

The nouns of a snapshot are made on every `gpudiag list`, and the methods that `dataclass` generates for
their many fields took a twentieth of its time to compile. Everything else is a dataclass's: `fields`,
`replace`, keyword arguments, slots.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def noun(cls: type[_T]) -> type[_T]:
    """The class as a frozen dataclass with slots; equal, hashed and shown by its fields."""
    made: Any = dataclass(frozen=True, slots=True, repr=False, eq=False)(cls)
    made.__eq__ = _equals
    made.__hash__ = _hash
    made.__repr__ = _show
    return made  # type: ignore[no-any-return]


def _values(instance: Any) -> tuple[Any, ...]:
    return tuple(getattr(instance, name) for name in instance.__slots__)


def _equals(instance: Any, other: object) -> Any:
    if other.__class__ is not instance.__class__:
        return NotImplemented
    return _values(instance) == _values(other)


def _hash(instance: Any) -> int:
    return hash(_values(instance))


def _show(instance: Any) -> str:
    named = (f"{name}={getattr(instance, name)!r}" for name in instance.__slots__)
    return f"{type(instance).__qualname__}({', '.join(named)})"
