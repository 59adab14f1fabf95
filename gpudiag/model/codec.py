"""What a document consists of, and the only conversion to JSON and back: for files, store, API and pipes.

A document is a noun with a `SCHEMA` name and version, written first. A missing reading is null, with
its reason under `missing` and the source's words, where there are any, under `missing_detail`:

    {"schema": "gpudiag.snapshot/1", ..., "fan_speed_percent": null,
     "missing": {"fan_speed_percent": "not_supported"}}

Fields that a reader does not know are ignored and fields that it misses take their defaults, so that
documents of the same major version stay readable when fields are added. A sheet (`probe.sheet`) is a noun's
document that a child of ours gathered: `read_sheet` reads it, and one value that does not fit costs only
itself.

Everything here is the standard library's: ranks run in the user's interpreter, and the quickest command pays
for every import (docs/decisions/0021).
"""

import json
import re
import sys
import types
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from gpudiag.compat import UTC, dataclass_transform, parse_iso_time
from gpudiag.errors import UsageError
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason

_T = TypeVar("_T")

# The codec writes such a field's members beside it instead of under its name.
FLATTEN = {"flatten": True}
# The codec neither writes nor reads such a field; it has a default.
UNWRITTEN = {"unwritten": True}
_NEWER_THAN_THE_DOCUMENT = Missing(MissingReason.NOT_ASKED, "the document does not have it")
_REASONS = {reason.value: reason for reason in MissingReason}
_NO_WORDS: dict[str, str] = {}
_HALF = re.compile("[\ud800-\udfff]")  # of a character; Python keeps bytes that are no UTF-8 so
_Reader = Callable[[Any, "Missing | None"], Any]  # of data, and why it may be missing in a sheet


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def noun(cls: type[_T]) -> type[_T]:
    """The class as a frozen dataclass with slots, whose methods are shared instead of generated.

    The nouns of a snapshot and of a report are made on every `gpudiag list`, and the methods that `dataclass`
    generates for their many fields took a fifth of its time to compile (docs/decisions/0005). Everything else
    is a dataclass's: `fields`, `replace`, keyword arguments, defaults, slots.
    """
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
    if values:
        given = dict(zip(names, values, strict=False))
        if len(values) > len(names) or not given.keys().isdisjoint(named):
            raise TypeError(f"{kind.__name__}: more values than fields, or one field twice")
        named |= given
    if len(named) < len(names):
        named = _defaults(kind) | named
    # By the fields, not by what was given: a service does this some thousand times a minute.
    if len(named) != len(names):
        raise _misnamed(kind, named)
    try:
        for name in names:
            _set_field(self, name, named[name])
    except KeyError:
        raise _misnamed(kind, named) from None


_set_field = object.__setattr__


def _misnamed(kind: Any, given: dict[str, Any]) -> TypeError:
    wrong = given.keys() ^ set(kind.__match_args__)
    return TypeError(f"{kind.__name__}: not given or not known: {', '.join(sorted(wrong))}")


@cache
def _defaults(noun_type: Any) -> dict[str, Any]:
    """The fields with defaults; a factory is called once, for its value is frozen too."""
    defaults = {}
    for one in fields(noun_type):
        if one.default_factory is not MISSING:
            defaults[one.name] = one.default_factory()
        elif one.default is not MISSING:
            defaults[one.name] = one.default
    return defaults


def _refuse(self: Any, name: str, value: object = None) -> None:
    raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name!r} cannot be changed")


@cache
def _compared_names(noun_type: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(noun_type) if one.compare)


def _compared(self: Any) -> tuple[Any, ...]:
    kind: Any = type(self)
    return tuple(getattr(self, name) for name in _compared_names(kind))


def _equals(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _show(self: Any) -> str:
    named = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({', '.join(named)})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return type(self), tuple(getattr(self, name) for name in self.__match_args__)


def all_missing(noun_type: type[_T], why: Missing, **given: Any) -> _T:
    """A noun whose fields, except those given, are all missing for one reason."""
    made: Any = noun_type
    return made(**{one.name: given.get(one.name, why) for one in fields(made)})  # type: ignore[no-any-return]


def to_document(noun: Any) -> dict[str, Any]:
    """The JSON-ready document of a noun that has a `SCHEMA`, its schema name first."""
    return {"schema": noun.SCHEMA, **encode(noun)}


def dumps(noun: Any, *, indent: int | None = None) -> str:
    """The document as JSON text; never NaN or Infinity, which JSON does not have."""
    return dump_document(to_document(noun), indent=indent)


def dump_document(document: Any, *, indent: int | None = None) -> str:
    """What is JSON-ready as text that any file and any reader can take; never NaN or Infinity."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() else _HALF.sub(lambda half: f"\\\\u{ord(half[0]):04x}", text)


def encode(value: Any) -> Any:
    """The JSON-ready form of a value or a noun; a missing reading stands only in a noun's field."""
    if isinstance(value, str):
        return value.value if isinstance(value, Enum) else _writable(value)
    if value is None or isinstance(value, int | float):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {encode(key): encode(item) for key, item in value.items()}
    return _encode_noun(value)


def _writable(text: str) -> str:
    r"""The text with `\udce9` for what is no character, as on a terminal: a byte of a name that is not UTF-8.

    JSON could hold it, and many readers of JSON, databases too, could not.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _encode_noun(noun: Any) -> dict[str, Any]:
    document: dict[str, Any] = {}
    missing: dict[str, str] = {}
    details: dict[str, str] = {}
    noun_type: Any = type(noun)
    for name, flatten in _written_fields(noun_type):
        value = getattr(noun, name)
        if isinstance(value, Missing):
            document[name] = None
            missing[name] = value.reason.value
            if value.detail:
                details[name] = _writable(value.detail)
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


def written_fields(noun_type: Any) -> "list[Field[Any]]":
    """The fields that a document has, or whose members it has."""
    return [one for one in fields(noun_type) if not one.metadata.get("unwritten")]


@cache
def _written_fields(noun_type: Any) -> tuple[tuple[str, bool], ...]:
    """Each field's name, and whether its members are written beside it."""
    return tuple((one.name, bool(one.metadata.get("flatten"))) for one in written_fields(noun_type))


def format_time(moment: datetime) -> str:
    """A moment as documents write it: UTC, milliseconds, `2026-11-20T21:04:05.123Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _MisfitError(Exception):
    """Data that is not of the expected type; the path to it is built from the inside out."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words
        self.path: list[str] = []

    def place(self) -> str:
        """The path of the data: `.devices[0].power_draw_watts`."""
        return "".join(reversed(self.path))


def decode(expected: type[_T], data: Any) -> _T:
    """`data`, as `encode` wrote it, as a value of the expected type.

    Raises:
        UsageError: it does not fit, with the path of the field that does not.
    """
    try:
        kind: Any = expected
        value: _T = _reader(kind)(data, None)
    except _MisfitError as misfit:
        raise UsageError(f"document{misfit.place()} {misfit.words}") from misfit
    return value


def read_sheet(noun_type: type[_T], document: dict[str, Any], otherwise: Missing = NOT_ASKED) -> _T:
    """The noun that a child's sheet describes.

    `otherwise` is the reason for fields that the sheet does not have. A value that does not fit its field is
    missing as an error: only the reading is lost, and the document can still be written.
    """
    read: _T = _noun(noun_type, document, otherwise)
    return read


def readings_of(noun_type: Any, document: dict[str, Any]) -> dict[str, Any]:
    """The fields that a child's sheet has, as a value or a reason, by name."""
    absent = document.get("missing", _NO_WORDS)
    given = [plan for plan in _field_plan(noun_type) if plan.name in document or plan.name in absent]
    return {plan.name: _field(plan, document, NOT_ASKED) for plan in given}


def join_sheets(*sheets: dict[str, Any]) -> dict[str, Any]:
    """One sheet, joined from several about the same thing; later ones win."""
    joined: dict[str, Any] = {}
    for sheet in sheets:
        notes = {note: joined.get(note, {}) | sheet.get(note, {}) for note in ("missing", "missing_detail")}
        joined |= sheet | notes
    return joined


def missing_of(document: dict[str, Any], name: str) -> Missing | None:
    """The reason and words for a field that is missing in a document; None where it has one."""
    reason = document.get("missing", _NO_WORDS).get(name)
    if reason is None:
        return None
    return Missing(_one_of(_REASONS, reason), document.get("missing_detail", _NO_WORDS).get(name, ""))


class _Plan:
    """One field of a noun, prepared for reading; its type is looked up only for a value that is not plain."""

    __slots__ = ("_noun_type", "_reader", "default", "factory", "flatten", "name", "scalar")

    def __init__(self, noun_type: Any, one: "Field[Any]") -> None:
        self.name = one.name
        self.scalar = _SCALARS.get(one.type)
        self.flatten = bool(one.metadata.get("flatten"))
        self.default = one.default
        self.factory = one.default_factory
        self._noun_type = noun_type
        self._reader: _Reader | None = None

    def type(self) -> Any:
        """The field's type."""
        return field_type(self._noun_type, self.name)

    def read(self, data: Any, otherwise: Missing | None) -> Any:
        """The value of the field; nouns within it are read as sheets of their own."""
        if self._reader is None:
            self._reader = _reader(self.type())
        return self._reader(data, None if otherwise is None else NOT_ASKED)

    def may_be_missing(self) -> bool:
        """Whether the field's type allows a reason instead of a value."""
        return Missing in get_args(self.type())


# Types of fields (also as text, where annotations are text) whose values need no further check.
_SCALARS: dict[Any, type] = {
    written: kind
    for kind in (str, int, float, bool)
    for written in (kind, kind.__name__, kind | Missing, f"Reading[{kind.__name__}]")
}


@cache
def _field_plan(noun_type: Any) -> tuple[_Plan, ...]:
    return tuple(_Plan(noun_type, one) for one in written_fields(noun_type))


def _noun(noun_type: Any, document: Any, otherwise: Missing | None) -> Any:
    """The noun of a document, or (with `otherwise`) of a sheet."""
    if type(document) is not dict:
        raise _MisfitError(f"should be an object, not {document!r}")
    values = {}
    for plan in _field_plan(noun_type):
        value = document.get(plan.name)
        if plan.scalar is not None and type(value) is plan.scalar:
            values[plan.name] = value
        else:
            values[plan.name] = _field(plan, document, otherwise)
    return noun_type(**values)


def _field(plan: _Plan, document: dict[str, Any], otherwise: Missing | None) -> Any:
    """The value of a field that is not plain, or missing."""
    if plan.flatten:
        return _noun(plan.type(), document, otherwise)
    name = plan.name
    try:
        if name not in document and (otherwise is None or name not in document.get("missing", _NO_WORDS)):
            return _absent_field(plan, otherwise)
        data = document.get(name)
        why = missing_of(document, name) if data is None else None
        return plan.read(data, otherwise) if why is None else why
    except _MisfitError as misfit:
        misfit.path.append(f".{name}")
        if otherwise is None or not plan.may_be_missing():
            raise
        return Missing(MissingReason.ERROR, f"{misfit.place().removeprefix('.')} {misfit.words}")


def _absent_field(plan: _Plan, otherwise: Missing | None) -> Any:
    if plan.factory is not MISSING:
        return plan.factory()
    if otherwise is not None and (plan.default is MISSING or isinstance(plan.default, Missing)):
        return otherwise
    if plan.default is not MISSING:
        return plan.default
    if not plan.may_be_missing():
        raise _MisfitError("is not in the document")
    return _NEWER_THAN_THE_DOCUMENT


@cache
def _reader(expected: Any) -> _Reader:
    """The function that turns JSON data into a value of that type."""
    origin = get_origin(expected)
    if origin in (Union, types.UnionType):
        return _reader_of_union(get_args(expected))
    if expected is Any:
        return lambda data, _: data
    if origin is tuple:
        return _reader_of_tuple(get_args(expected))
    if origin is dict:
        return _reader_of_dict(_reader(get_args(expected)[1]))
    if origin is Literal:
        words = {word: word for word in get_args(expected)}
        return lambda data, _: _one_of(words, data)
    if expected is datetime:
        return _read_time
    if isinstance(expected, type) and issubclass(expected, Enum):
        members = {member.value: member for member in expected}
        return lambda data, _: _one_of(members, data)
    if is_dataclass(expected):
        return lambda data, otherwise: _noun(expected, data, otherwise)
    return lambda data, _: _scalar(expected, data)


def _reader_of_union(members: tuple[Any, ...]) -> _Reader:
    candidates: list[Any] = [member for member in members if member not in (type(None), Missing)]
    scalars = {member for member in candidates if member in (str, int, float, bool)}
    kinds = [member for member in candidates if is_dataclass(member)]
    of_list = next((_reader(member) for member in candidates if get_origin(member) is tuple), None)
    of_other = _reader_of_kinds(kinds) if len(kinds) > 1 else _reader(candidates[0])

    def read(data: Any, otherwise: Missing | None) -> Any:
        if data is None:
            if type(None) in members:
                return None
            raise _MisfitError("is null without a reason under `missing`")
        if type(data) in scalars:
            return data
        if of_list is not None and isinstance(data, list):
            return of_list(data, otherwise)
        return of_other(data, otherwise)

    return read


def _reader_of_kinds(kinds: list[Any]) -> _Reader:
    """The reader for nouns that `kind` distinguishes."""
    by_kind = {get_args(type_hints(kind)["kind"])[0]: kind for kind in kinds}

    def read(data: Any, otherwise: Missing | None) -> Any:
        try:
            kind = _one_of(by_kind, _object(data).get("kind"))
        except _MisfitError as misfit:
            misfit.path.append(".kind" if isinstance(data, dict) else "")
            raise
        return _noun(kind, data, otherwise)

    return read


def _reader_of_tuple(members: tuple[Any, ...]) -> _Reader:
    of_any_length = len(members) == 2 and members[1] is Ellipsis
    readers = [_reader(member) for member in members if member is not Ellipsis]

    def read(data: Any, otherwise: Missing | None) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise _MisfitError(f"should be a list, not {data!r}")
        if not of_any_length and len(data) != len(readers):
            raise _MisfitError(f"should have {len(readers)} members, not {len(data)}")
        values: list[Any] = []
        try:
            for one, item in zip(readers * len(data) if of_any_length else readers, data, strict=True):
                values.append(one(item, otherwise))
        except _MisfitError as misfit:
            misfit.path.append(f"[{len(values)}]")
            raise
        return tuple(values)

    return read


def _reader_of_dict(of_value: _Reader) -> _Reader:
    def read(data: Any, otherwise: Missing | None) -> dict[str, Any]:
        values = {}
        for key, item in _object(data).items():
            try:
                values[key] = of_value(item, otherwise)
            except _MisfitError as misfit:
                misfit.path.append(f".{key}")
                raise
        return values

    return read


def _scalar(expected: type, data: Any) -> Any:
    if expected is float and type(data) is int:
        return float(data)
    if type(data) is not expected:
        raise _MisfitError(f"should be {expected.__name__}, not {data!r}")
    return data


def _read_time(data: Any, otherwise: Missing | None) -> datetime:
    """The moment that a document writes as text, and a sheet as Unix time."""
    if otherwise is not None and isinstance(data, int | float):
        return datetime.fromtimestamp(data, UTC)
    try:
        return parse_iso_time(data)
    except (TypeError, ValueError) as error:
        raise _MisfitError(f"should be a time such as 2026-11-20T21:04:05.123Z, not {data!r}") from error


def _one_of(allowed: dict[Any, Any], data: Any) -> Any:
    if not isinstance(data, str | int) or data not in allowed:
        raise _MisfitError(f"should be one of {', '.join(map(str, allowed))}, not {data!r}")
    return allowed[data]


def _object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _MisfitError(f"should be an object, not {data!r}")
    return data


@cache
def type_hints(noun_type: Any) -> dict[str, Any]:
    """Each field's type by the field's name."""
    return {one.name: field_type(noun_type, one.name) for one in fields(noun_type)}


@cache
def field_type(noun_type: Any, name: str) -> Any:
    """The type of one field."""
    [written] = [one.type for one in fields(noun_type) if one.name == name]
    if not isinstance(written, str):
        return written
    return _evaluated(written, noun_type.__module__)


@cache
def _evaluated(annotation: str, module: str) -> Any:
    return eval(annotation, vars(sys.modules[module]))  # noqa: S307 - an annotation in our own source
