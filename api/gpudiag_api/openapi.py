"""The service's OpenAPI description: the documents that each route answers with, and the form of errors."""

from collections.abc import Iterable
from typing import Any

from gpudiag import __version__
from gpudiag.model.documents import DOCUMENTS, json_schema
from gpudiag_api.access import Access
from gpudiag_api.routes import Route

_PROBLEMS = {
    400: "malformed",
    401: "a token is needed",
    403: "not allowed",
    404: "not found",
    406: "not in that format",
    408: "too slow",
    409: "something else holds it",
    413: "too large",
    414: "the address is too long",
    415: "not JSON",
    421: "another host",
    422: "a value is out of its bounds",
    429: "too many",
    431: "the headers are too large",
    500: "a bug",
    503: "no data yet, or no more room",
}
_ALWAYS = (400, 401, 403, 414, 421, 422, 431)  # the gate may answer them on every route
_PROBLEM = {
    "type": "object",
    "description": "An error (RFC 9457).",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "hint": {"type": "string"},
        "instance": {"type": "string"},
    },
    "required": ["type", "title", "status", "code", "detail"],
}
_DESCRIPTION = (
    "The GPUs of one machine: what they are, do and did, what is wrong with them, and runs of tests."
)
_HUB_DESCRIPTION = "Several machines, each as its own gpudiag service reports it."


def answers(
    noun: Any, *problems: int, media_type: str = "application/json", status: int = 200
) -> dict[Any, Any]:
    """The OpenAPI responses of a route that answers with that noun's document, or with problems."""
    schema = {"$ref": f"#/components/schemas/{component_name(noun.SCHEMA)}"} if noun else {}
    described: dict[Any, Any] = {
        status: {
            "description": (noun.__doc__ or "").splitlines()[0] if noun else "the answer",
            "content": {media_type: {"schema": schema}},
        },
    }
    if status == 200:
        described[304] = {"description": "the caller has it"}
    return described | problem_answers(*problems)


def problem_answers(*problems: int) -> dict[Any, Any]:
    """The OpenAPI responses for problems: those that every route may answer with, and these."""
    return {
        number: {
            "description": _PROBLEMS[number],
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for number in sorted({*_ALWAYS, *problems})
    }


def component_name(schema: str) -> str:
    """The name of a document's schema among the components: `gpudiag.live/1` is `live-1`."""
    return schema.removeprefix("gpudiag.").replace("/", "-")


def describe(service: Access, routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of those routes."""
    paths: dict[str, dict[str, Any]] = {}
    bodies: dict[str, Any] = {}
    for route in routes:
        operation = _operation(route)
        if route.body is not None:
            name, schema = route.body
            bodies[name] = schema
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpudiag",
            "version": __version__,
            "description": _HUB_DESCRIPTION if service.is_hub else _DESCRIPTION,
        },
        "paths": paths,
        "components": {
            "schemas": _document_schemas() | bodies | {"Problem": _PROBLEM},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": service.settings.cookie},
            },
        },
        "security": [{}, {"token": []}, {"session": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    """One route, without its body."""
    described: dict[str, Any] = {
        "tags": [route.tag],
        "summary": route.summary,
        "operationId": route.endpoint.__name__,
        "responses": {str(status): one for status, one in route.answers.items()},
    }
    if route.parameters:
        described["parameters"] = [one.described() for one in route.parameters]
    return described


def _document_schemas() -> dict[str, Any]:
    """Every document's JSON Schema as components, with references among them."""
    found: dict[str, Any] = {}
    for name in DOCUMENTS:
        schema = json_schema(name)
        for part, definition in schema.pop("$defs", {}).items():
            found[part] = _moved(definition)
        schema.pop("$schema", None)
        found[component_name(name)] = _moved(schema)
    return found


def _moved(value: Any) -> Any:
    """The schema with its references to `$defs` turned into references to components."""
    if isinstance(value, dict):
        return {
            key: item.replace("#/$defs/", "#/components/schemas/") if key == "$ref" else _moved(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_moved(item) for item in value]
    return value
