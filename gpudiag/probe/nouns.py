"""Nouns from the plain documents that children send."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar

from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason

_T = TypeVar("_T")


def noun_of(noun_type: Callable[..., _T], document: Mapping[str, Any], **given: Any) -> _T:
    """A noun whose fields are those of a sheet's document; `given` fields take precedence.

    A field that neither has takes its default, or NOT_ASKED. The codec would do the same with checks
    of every value, for ten times the time; here both ends are ours.
    """
    absent = missing_of(document)
    values = {}
    for name, default in _defaults(noun_type):
        if name in given:
            values[name] = given[name]
        elif name in absent:
            values[name] = absent[name]
        else:
            values[name] = document.get(name, default)
    return noun_type(**values)


def missing_of(document: Mapping[str, Any]) -> dict[str, Missing]:
    """Every absence in a sheet's document."""
    details = document.get("missing_detail", {})
    return {
        name: Missing(MissingReason(reason), details.get(name, ""))
        for name, reason in document.get("missing", {}).items()
    }


def reading_of(document: Mapping[str, Any], name: str) -> Any:
    """One field of a sheet's document: the value or the reason for none."""
    absent = document.get("missing", {}).get(name)
    if absent is not None:
        return Missing(MissingReason(absent), document.get("missing_detail", {}).get(name, ""))
    return document.get(name, NOT_ASKED)


def all_missing(noun_type: Callable[..., _T], why: Missing, **given: Any) -> _T:
    """A noun whose fields are all missing for one reason, but the given ones."""
    return noun_type(**{name: given.get(name, why) for name, _ in _defaults(noun_type)})


@cache
def _defaults(noun_type: Any) -> tuple[tuple[str, Any], ...]:
    """Each field's name and default; NOT_ASKED for a field without one."""
    return tuple(
        (field.name, NOT_ASKED if field.default is MISSING else field.default) for field in fields(noun_type)
    )
