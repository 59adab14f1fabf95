"""Our own dataclasses from the tables of a TOML file, with an error that names the key."""

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from gpudiag.errors import UsageError
from gpudiag.simulate.names import nearest_hint

_T = TypeVar("_T")
_SCALARS = (str, int, float, bool, types.NoneType)


def build(noun_type: type[_T], table: Any, file: str) -> _T:
    """The dataclass with the table's values; lists become tuples.

    Raises:
        UsageError: the table has an unknown key, lacks one, or a value is of the wrong kind.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{file}: {table!r} should be a table")
    hints = get_type_hints(noun_type)
    known = {field.name for field in fields(noun_type)}  # type: ignore[arg-type] # callers pass dataclasses
    values = {}
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{file}: unknown key {key!r}", hint=nearest_hint(key, known))
        if not _fits(hints[key], value):
            raise UsageError(f"{file}: {key} does not fit: {value!r}")
        values[key] = tuple(value) if isinstance(value, list) else value
    try:
        return noun_type(**values)
    except TypeError as error:
        raise UsageError(f"{file}: {noun_type.__name__} is not complete: {error}") from error


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value may stand where the hint is; of lists and tables only that they are such."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(member, value) for member in get_args(hint))
    if hint is float:
        return type(value) in (int, float)
    if hint in _SCALARS:
        return type(value) is hint
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple)
    return isinstance(value, Mapping)
