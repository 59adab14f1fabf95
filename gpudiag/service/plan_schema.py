"""The JSON Schema of a plan, from its fields: their types, allowed words and bounds."""

from typing import Any

from gpudiag.model.option import ALL, PlanField, plan_fields
from gpudiag.service.kinds import RunKind

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def plan_schema(kind: RunKind) -> dict[str, Any]:
    """The schema of the plans of that kind over HTTP, defaults included."""
    properties = {
        one.name: {**_property(one), "default": list(one.default) if one.is_list else one.default}
        for one in plan_fields(kind.plan_type)
        if one.name not in kind.hidden
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(one: PlanField) -> dict[str, Any]:
    words = [*one.option.choices, *((ALL,) if one.option.all_means == (ALL,) else ())]
    enumeration = {"enum": words} if words else {}
    if one.is_list:
        return {"type": "array", "items": {"type": "string", **enumeration}}
    name = _TYPES[one.value_type]
    schema: dict[str, Any] = {"type": [name, "null"] if one.is_optional else name, **enumeration}
    if one.option.low is not None:
        schema["minimum"], schema["maximum"] = one.option.low, one.option.high
    return schema
