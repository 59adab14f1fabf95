"""`@noun`: a frozen dataclass whose methods are shared instead of generated.

The nouns of a snapshot are made on every `gpudiag list`, and the methods that `dataclass` generates for
their many fields took a tenth of its time to compile. Everything else is a dataclass's: `fields`,
`replace`, keyword arguments, defaults, slots.
"""

from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import cache
from typing import Any, TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def noun(cls: type[_T]) -> type[_T]:
    """The class as a frozen dataclass with slots; equal, hashed and shown by its fields."""
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    made.__init__ = _init
    made.__setattr__ = made.__delattr__ = _refuse
    made.__eq__ = _equals
    made.__hash__ = _hash
    made.__repr__ = _show
    made.__reduce__ = _reduce
    return made  # type: ignore[no-any-return]


def _init(self: Any, *values: Any, **named: Any) -> None:
    kind: Any = type(self)
    names = kind.__match_args__
    given = dict(zip(names, values, strict=False))
    if len(values) > len(names) or not given.keys().isdisjoint(named):
        raise TypeError(f"{kind.__name__}: more values than fields, or one field twice")
    given |= named
    if len(given) < len(names):
        given = _defaults(kind) | given
    if given.keys() != set(names):
        wrong = given.keys() ^ set(names)
        raise TypeError(f"{kind.__name__}: not given or not known: {', '.join(sorted(wrong))}")
    for name, value in given.items():
        object.__setattr__(self, name, value)


@cache
def _defaults(noun_type: Any) -> dict[str, Any]:
    """The fields that need not be given; a factory is called once, for what it makes is frozen too."""
    defaults = {}
    for one in fields(noun_type):
        if one.default_factory is not MISSING:
            defaults[one.name] = one.default_factory()
        elif one.default is not MISSING:
            defaults[one.name] = one.default
    return defaults


def _refuse(self: Any, name: str, value: object = None) -> None:
    raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name!r} cannot be changed")


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in self.__match_args__)


def _equals(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _show(self: Any) -> str:
    named = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({', '.join(named)})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return type(self), _values(self)
