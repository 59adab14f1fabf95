"""JSON values to typed nouns, by the nouns' own annotations. `codec.decode` is the way in."""

import types
from dataclasses import Field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from gpudiag.errors import UsageError
from gpudiag.model.codec import default_of
from gpudiag.model.hints import type_hints
from gpudiag.model.reading import Missing, MissingReason


def decode_value(expected: Any, data: Any, path: str) -> Any:
    """`data` as a value of type `expected`; `path` names the field in an error.

    Raises:
        UsageError: it does not fit.
    """
    origin = get_origin(expected)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(expected), data, path)
    if expected is Any:
        return data
    if origin is tuple:
        return _decode_tuple(get_args(expected), data, path)
    if origin is dict:
        value_type = get_args(expected)[1]
        return {
            key: decode_value(value_type, item, f"{path}.{key}") for key, item in _object(data, path).items()
        }
    if origin is Literal:
        return _one_of(get_args(expected), data, path)
    if expected is datetime:
        return _decode_time(data, path)
    if isinstance(expected, type) and issubclass(expected, Enum):
        return expected(_one_of(tuple(member.value for member in expected), data, path))
    if is_dataclass(expected):
        return _decode_noun(expected, _object(data, path), path)
    return _decode_scalar(expected, data, path)


def _decode_noun(noun_type: Any, document: dict[str, Any], path: str) -> Any:
    hints = type_hints(noun_type)
    values = {
        field.name: _decode_field(field, hints[field.name], document, f"{path}.{field.name}")
        for field in fields(noun_type)
    }
    return noun_type(**values)


def _decode_field(field: "Field[Any]", expected: Any, document: dict[str, Any], path: str) -> Any:
    if field.metadata.get("flatten"):
        return _decode_noun(expected, document, path)
    if field.name not in document:
        return _default(field, expected, path)
    reason = document.get("missing", {}).get(field.name)
    if document[field.name] is None and reason is not None:
        detail = document.get("missing_detail", {}).get(field.name, "")
        return Missing(decode_value(MissingReason, reason, path), detail)
    return decode_value(expected, document[field.name], path)


def _default(field: "Field[Any]", expected: Any, path: str) -> Any:
    value = default_of(field)
    if isinstance(value, Missing) and Missing not in get_args(expected):
        raise UsageError(f"{path} is not in the document")
    return value


def _decode_union(members: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and type(None) in members:
        return None
    candidates = [member for member in members if member not in (type(None), Missing)]
    kinds = [member for member in candidates if is_dataclass(member)]
    if len(kinds) > 1:
        return decode_value(_member_of_kind(kinds, _object(data, path), path), data, path)
    for member in candidates:
        if member in (str, int, float, bool) and type(data) is member:
            return data
    lists = [member for member in candidates if get_origin(member) is tuple]
    if isinstance(data, list) and lists:
        return decode_value(lists[0], data, path)
    if not candidates or (data is None):
        raise UsageError(f"{path} is null without a reason under `missing`")
    return decode_value(candidates[0], data, path)


def _member_of_kind(kinds: list[Any], document: dict[str, Any], path: str) -> Any:
    by_kind = {get_args(type_hints(kind)["kind"])[0]: kind for kind in kinds}
    return by_kind[_one_of(tuple(by_kind), document.get("kind"), f"{path}.kind")]


def _decode_tuple(members: tuple[Any, ...], data: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise UsageError(f"{path} should be a list, not {data!r}")
    if len(members) == 2 and members[1] is Ellipsis:
        return tuple(decode_value(members[0], item, f"{path}[{at}]") for at, item in enumerate(data))
    if len(data) != len(members):
        raise UsageError(f"{path} should have {len(members)} members, not {len(data)}")
    return tuple(decode_value(member, data[at], f"{path}[{at}]") for at, member in enumerate(members))


def _decode_scalar(expected: type, data: Any, path: str) -> Any:
    if expected is float and type(data) is int:
        return float(data)
    if type(data) is not expected:
        raise UsageError(f"{path} should be {expected.__name__}, not {data!r}")
    return data


def _decode_time(data: Any, path: str) -> datetime:
    try:
        return datetime.fromisoformat(data)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path} should be a time such as 2026-11-20T21:04:05.123Z, not {data!r}") from error


def _one_of(allowed: tuple[Any, ...], data: Any, path: str) -> Any:
    if data not in allowed:
        raise UsageError(f"{path} should be one of {', '.join(map(str, allowed))}, not {data!r}")
    return data


def _object(data: Any, path: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UsageError(f"{path} should be an object, not {data!r}")
    return data
