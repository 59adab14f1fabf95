"""The part of SARIF 2.1.0 that `gpudiag lint` writes, as a JSON Schema that allows nothing else.

Written from the text of the standard (OASIS, sections 3.13 to 3.58): the names, which of them must be there,
and their types.
"""

from typing import Any

_MESSAGE = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 1}},
    "required": ["text"],
    "additionalProperties": False,
}
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_ARTIFACT = {
    "type": "object",
    "properties": {"uri": {"type": "string", "pattern": r"^[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+$"}},
    "required": ["uri"],
    "additionalProperties": False,
}
_REGION = {
    "type": "object",
    "properties": {
        **{
            name: {"type": "integer", "minimum": 1}
            for name in ("startLine", "startColumn", "endLine", "endColumn")
        },
        "snippet": _MESSAGE,
    },
    "required": ["startLine"],
    "additionalProperties": False,
}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_RULE = _object(
    ("id",),
    id={"type": "string"},
    name={"type": "string"},
    shortDescription=_MESSAGE,
    fullDescription=_MESSAGE,
    defaultConfiguration=_object((), level=_LEVEL),
)
_LOCATION = _object(
    (), physicalLocation=_object(("artifactLocation",), artifactLocation=_ARTIFACT, region=_REGION)
)
_REPLACEMENT = _object(
    ("deletedRegion",), deletedRegion=_REGION, insertedContent=_object((), text={"type": "string"})
)
_CHANGE = _object(
    ("artifactLocation", "replacements"),
    artifactLocation=_ARTIFACT,
    replacements={**_array(_REPLACEMENT), "minItems": 1},
)
_FIX = _object(("artifactChanges",), description=_MESSAGE, artifactChanges={**_array(_CHANGE), "minItems": 1})
_RESULT = _object(
    ("message",),
    ruleId={"type": "string"},
    ruleIndex={"type": "integer", "minimum": -1},
    level=_LEVEL,
    message=_MESSAGE,
    locations=_array(_LOCATION),
    fixes=_array(_FIX),
)
_INVOCATION = _object(
    ("executionSuccessful",),
    executionSuccessful={"type": "boolean"},
    toolExecutionNotifications=_array(_object(("message",), level=_LEVEL, message=_MESSAGE)),
)
_RUN = _object(
    ("tool",),
    tool=_object(
        ("driver",),
        driver=_object(("name",), name={"type": "string"}, version={"type": "string"}, rules=_array(_RULE)),
    ),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results=_array(_RESULT),
    invocations=_array(_INVOCATION),
)
SARIF = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(
        ("version", "runs"),
        version={"const": "2.1.0"},
        runs={**_array(_RUN), "minItems": 1},
        **{"$schema": {"type": "string", "format": "uri"}},
    ),
}
