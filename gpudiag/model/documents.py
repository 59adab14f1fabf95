"""The documents there are, by schema name, and the JSON Schema of each, from the nouns' own annotations."""

import json
import types
from dataclasses import MISSING, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from gpudiag.errors import UnknownSchemaError, UsageError
from gpudiag.model.benchmark import Judgement
from gpudiag.model.codec import decode, type_hints, written_fields
from gpudiag.model.comparison import Comparison
from gpudiag.model.device import Snapshot
from gpudiag.model.doctor import DoctorReport
from gpudiag.model.explanation import LogExplanation
from gpudiag.model.history import History
from gpudiag.model.hub import HubDocument, HubEvents
from gpudiag.model.job import HangReport, Job
from gpudiag.model.job_run import JobRun
from gpudiag.model.lint import LintReport
from gpudiag.model.nearest import did_you_mean
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.receipt import Receipt, ReceiptCheck
from gpudiag.model.report import CollectiveReport, MergedReport, Report
from gpudiag.model.run import Run, RunEvent, RunEvents
from gpudiag.model.service import (
    DeviceDocument,
    ExplanationDocument,
    Findings,
    Live,
    Processes,
    Series,
    ServiceHealth,
    Session,
    Sources,
    Timeline,
)
from gpudiag.model.topology import Topology
from gpudiag.model.training import TrainingReport

# --- the documents

_OF_SERVICE: tuple[Any, ...] = (
    Live,
    DeviceDocument,
    Processes,
    Sources,
    Findings,
    ExplanationDocument,
    ServiceHealth,
    Session,
    Run,
    RunEvents,
    Series,
    Timeline,
    HubDocument,
    HubEvents,
)
DOCUMENTS: dict[str, type] = {
    noun.SCHEMA: noun
    for noun in (
        Snapshot,
        Report,
        MergedReport,
        CollectiveReport,
        TrainingReport,
        RunEvent,
        History,
        LogExplanation,
        LintReport,
        Judgement,
        HangReport,
        Job,
        JobRun,
        DoctorReport,
        Topology,
        Receipt,
        ReceiptCheck,
        Comparison,
        *_OF_SERVICE,
    )
}


def noun_type(schema: str) -> type:
    """The dataclass of a schema name.

    Raises:
        UnknownSchemaError: the name is unknown; the nearest known one is given.
    """
    if schema in DOCUMENTS:
        return DOCUMENTS[schema]
    hint = did_you_mean(schema, DOCUMENTS) or f"known: {', '.join(DOCUMENTS)}"
    raise UnknownSchemaError(schema, hint=hint)


def loads(text: str) -> Any:
    """The noun that a document's JSON text describes.

    Raises:
        UsageError: it is not JSON, or not a document of gpudiag that this version knows.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError("not a JSON document, or cut short") from error
    return from_document(document)


def from_document(document: Any) -> Any:
    """The noun that a document describes, by its `schema`.

    Raises:
        UsageError: no or an unknown schema name, or a field that does not fit it.
    """
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise UsageError("not a gpudiag document: it has no `schema`")
    return decode(noun_type(document["schema"]), document)


# --- their schemas

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def json_schema(schema: str) -> dict[str, Any]:
    """The JSON Schema of the documents with that schema name, such as `gpudiag.snapshot/1`.

    Raises:
        UsageError: there is no such document.
    """
    return noun_schema(noun_type(schema))


def noun_schema(noun: Any) -> dict[str, Any]:
    """The JSON Schema of a dataclass that has a `SCHEMA`, of gpudiag's documents or not."""
    definitions: dict[str, Any] = {}
    schema: str = noun.SCHEMA
    body = _noun_schema(noun, definitions)
    body["properties"] = {"schema": {"const": schema}, **body["properties"]}
    body["required"] = ["schema", *body["required"]]
    return {"$schema": _DIALECT, "title": schema, **body, "$defs": dict(sorted(definitions.items()))}


def _noun_schema(noun: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = type_hints(noun)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for field in written_fields(noun):
        if field.metadata.get("flatten"):
            inner = _noun_schema(hints[field.name], definitions)
            properties |= inner["properties"]
            required += inner["required"]
            continue
        properties[field.name] = _type_schema(hints[field.name], definitions)
        if field.default is MISSING and field.default_factory is MISSING:
            required.append(field.name)
    properties |= _missing_properties(hints, definitions)
    return {
        "type": "object",
        "description": (noun.__doc__ or "").strip().splitlines()[0],
        "properties": properties,
        "required": required,
    }


def _missing_properties(hints: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if not any(Missing in get_args(hint) for hint in hints.values()):
        return {}
    return {
        "missing": {"type": "object", "additionalProperties": _type_schema(MissingReason, definitions)},
        "missing_detail": {"type": "object", "additionalProperties": {"type": "string"}},
    }


def _type_schema(expected: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin = get_origin(expected)
    if origin in (Union, types.UnionType):
        return _union_schema(get_args(expected), definitions)
    if origin is tuple:
        return _tuple_schema(get_args(expected), definitions)
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(get_args(expected)[1], definitions)}
    if origin is Literal:
        return {"const": get_args(expected)[0]}
    if expected is datetime:
        return {"type": "string", "format": "date-time"}
    if expected in _SCALARS:
        return {"type": _SCALARS[expected]}
    return _definition(expected, definitions)


def _union_schema(members: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    plain = [type(None) if member is Missing else member for member in members]
    return {"anyOf": [_type_schema(member, definitions) for member in plain]}


def _tuple_schema(members: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    if len(members) == 2 and members[1] is Ellipsis:
        return {"type": "array", "items": _type_schema(members[0], definitions)}
    items = [_type_schema(member, definitions) for member in members]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _definition(expected: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = expected.__name__
    if name not in definitions:
        definitions[name] = {}  # reserved before its members are visited
        if is_dataclass(expected):
            definitions[name] = _noun_schema(expected, definitions)
        else:
            definitions[name] = _enum_schema(expected)
    return {"$ref": f"#/$defs/{name}"}


def _enum_schema(expected: type[Enum]) -> dict[str, Any]:
    return {
        "type": "string",
        "description": (expected.__doc__ or "").strip().splitlines()[0],
        "enum": [member.value for member in expected],
    }
