"""Every document to JSON and back: the one serialiser.

A document is a noun with a `SCHEMA` name and version, written first. A missing reading is null, with
its reason under `missing` and the source's words, where there are any, under `missing_detail`:

    {"schema": "gpudiag.snapshot/1", ..., "fan_speed_percent": null,
     "missing": {"fan_speed_percent": "not_supported"}}

Fields that a reader does not know are ignored and fields that it misses take their defaults, so that
documents of the same major version stay readable when fields are added.
"""

import json
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, Protocol, TypeVar

from gpudiag.errors import UsageError
from gpudiag.model.reading import Missing, MissingReason

_T = TypeVar("_T")


class Noun(Protocol):
    """A dataclass that is a document of its own."""

    SCHEMA: str


def to_document(noun: Any) -> dict[str, Any]:
    """The JSON-ready document of a noun that has a `SCHEMA`, its schema name first."""
    return {"schema": noun.SCHEMA, **encode(noun)}


def dumps(noun: Any, *, indent: int | None = None) -> str:
    """The document as JSON text; never NaN or Infinity, which JSON does not have."""
    return json.dumps(to_document(noun), indent=indent, ensure_ascii=False, allow_nan=False)


def encode(value: Any) -> Any:
    """The JSON-ready form of a value or a noun; a missing reading stands only in a noun's field."""
    if value is None or isinstance(value, str | int | float):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return _encode_noun(value)


def _encode_noun(noun: Any) -> dict[str, Any]:
    document: dict[str, Any] = {}
    missing: dict[str, str] = {}
    details: dict[str, str] = {}
    noun_type: Any = type(noun)
    for name, flatten in _field_plan(noun_type):
        value = getattr(noun, name)
        if isinstance(value, Missing):
            document[name] = None
            missing[name] = value.reason.value
            if value.detail:
                details[name] = value.detail
        elif flatten:
            inner = _encode_noun(value)
            missing |= inner.pop("missing", {})
            details |= inner.pop("missing_detail", {})
            document |= inner
        else:
            document[name] = encode(value)
    if missing:
        document["missing"] = missing
    if details:
        document["missing_detail"] = details
    return document


@cache
def _field_plan(noun_type: Any) -> tuple[tuple[str, bool], ...]:
    """Each field's name, and whether its members are written beside it."""
    return tuple((field.name, bool(field.metadata.get("flatten"))) for field in fields(noun_type))


def format_time(moment: datetime) -> str:
    """A moment as documents write it: UTC, milliseconds, `2026-11-20T21:04:05.123Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def loads(text: str) -> Any:
    """The noun that a document's JSON text describes.

    Raises:
        UsageError: it is not JSON, or not a document of gpudiag that this version knows.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"not a JSON document: {error}") from error
    return from_document(document)


def from_document(document: Any) -> Any:
    """The noun that a document describes, by its `schema`.

    Raises:
        UsageError: no or an unknown schema name, or a field that does not fit it.
    """
    from gpudiag.model.documents import noun_type

    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise UsageError("not a gpudiag document: it has no `schema`")
    return decode(noun_type(document["schema"]), document)


def decode(expected: type[_T], data: Any) -> _T:
    """`data`, as `encode` wrote it, as a value of the expected type.

    Raises:
        UsageError: it does not fit, with the path of the field that does not.
    """
    from gpudiag.model.decoding import decode_value

    value: _T = decode_value(expected, data, "document")
    return value


def default_of(field: Any) -> Any:
    """A field's default, or NOT_ASKED for a document written before the field existed."""
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    return Missing(MissingReason.NOT_ASKED, "the document does not have it")
