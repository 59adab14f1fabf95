"""Routes: each declared with what a request may hold, which is checked, and described in OpenAPI, from that one place.

What a parameter or a body may be is its JSON Schema, of which `misfit` knows the words that are used here. A library that
does this (FastAPI on pydantic) took a fifth of the service's memory (docs/decisions/0042).
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gpudiag_api.replies import Problem

Schema = dict[str, Any]
Endpoint = Callable[..., Awaitable[Response]]

# --- what a request may hold

_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_NAMES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a query, or a part of the path: its name, its schema, and the endpoint's argument."""

    name: str
    schema: Schema
    argument: str = ""
    in_path: bool = False
    is_required: bool = False  # of a query; a part of the path always is

    @property
    def place(self) -> str:
        """Where it stands, in OpenAPI's word."""
        return "path" if self.in_path else "query"

    def read(self, given: str | None) -> Any:
        """The value of what the request has; the default where it has nothing.

        Raises:
            Problem: the schema does not allow it.
        """
        if given is None and self.is_required:
            raise invalid(f"{self.place}.{self.name}: it is missing")
        if given is None:
            return self.schema.get("default")
        value = _converted(given, self.schema["type"])
        if (wrong := misfit(value, self.schema, f"{self.place}.{self.name}")) is not None:
            raise invalid(*wrong)
        return value

    def described(self) -> dict[str, Any]:
        """The OpenAPI parameter."""
        return {
            "name": self.name,
            "in": self.place,
            "required": self.in_path or self.is_required,
            "schema": self.schema,
        }


def text(name: str, most: int, argument: str = "") -> Parameter:
    """A text of at most that many characters."""
    return Parameter(name, {"type": "string", "maxLength": most}, argument)


def choice(name: str, words: tuple[str, ...], default: str | None = None) -> Parameter:
    """One of those words."""
    schema: Schema = {"type": "string", "enum": list(words)}
    return Parameter(name, schema if default is None else {**schema, "default": default})


def flag(name: str) -> Parameter:
    """True or false; false where it is not given."""
    return Parameter(name, {"type": "boolean", "default": False})


def part(name: str, pattern: str) -> Parameter:
    """A part of the path."""
    return Parameter(name, {"type": "string", "pattern": f"^{pattern}$"}, in_path=True)


def misfit(value: Any, schema: Schema, place: str) -> tuple[str, str] | None:
    """Why the schema does not allow the value, and what it allows, as detail and hint; None where it does."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_is_a(value, name) for name in types):
        return f"{place}: {_shown(value)} is not {' or '.join(_NAMES[name] for name in types)}", ""
    if isinstance(value, dict):
        return _misfit_of_object(value, schema, place)
    if isinstance(value, list):
        return _misfit_of_list(value, schema, place)
    if isinstance(value, str):
        return _misfit_of_text(value, schema, place)
    if isinstance(value, int | float) and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
    ):
        return (
            f"{place}: {_shown(value)} is out of range",
            f"{schema.get('minimum')} to {schema.get('maximum')}",
        )
    return None


def _misfit_of_text(value: str, schema: Schema, place: str) -> tuple[str, str] | None:
    if "enum" in schema and value not in schema["enum"]:
        return f"{place}: {_shown(value)} is no choice", f"one of {', '.join(schema['enum'])}"
    if len(value) > schema.get("maxLength", len(value)):
        return f"{place}: it has more than {schema['maxLength']} characters", ""
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        return f"{place}: {_shown(value)} is no such name", f"it must match {schema['pattern']}"
    return None


def _misfit_of_list(value: list[Any], schema: Schema, place: str) -> tuple[str, str] | None:
    if len(value) > schema.get("maxItems", len(value)):
        return f"{place}: it lists more than {schema['maxItems']}", ""
    found = (misfit(one, schema["items"], f"{place}.{number}") for number, one in enumerate(value))
    return next((wrong for wrong in found if wrong is not None), None)


def _misfit_of_object(value: dict[str, Any], schema: Schema, place: str) -> tuple[str, str] | None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", False)
    if len(value) > schema.get("maxProperties", len(value)):
        return f"{place}: it has more than {schema['maxProperties']} members", ""
    for name in schema.get("required", ()):
        if name not in value:
            return f"{place}: {name} is missing", ""
    for name, one in value.items():
        of_name = known.get(name, others)
        if not of_name:
            return f"{place}: {_shown(name)} is not known", f"one of {', '.join(known)}"
        wrong = misfit(name, schema.get("propertyNames", {"type": "string"}), place)
        if wrong is None:
            wrong = misfit(one, of_name, f"{place}.{name}")
        if wrong is not None:
            return wrong
    return None


def _is_a(value: Any, name: str) -> bool:
    """Whether it is of JSON's type; true and false are no numbers."""
    return isinstance(value, _TYPES[name]) and (name == "boolean") >= isinstance(value, bool)


def _converted(given: str, name: str) -> Any:
    """What the text of a query stands for as that type; the text itself where it stands for none."""
    if name == "boolean":
        lower = given.lower()
        return True if lower in _TRUE else False if lower in _FALSE else given
    if name in ("integer", "number"):
        try:
            return int(given) if name == "integer" else float(given)
        except ValueError:
            return given
    return given


def _shown(value: Any) -> str:
    return repr(value)[:_SHOWN_CHARACTERS]


def invalid(detail: str, hint: str = "") -> Problem:
    """The problem of a request that holds something that it may not."""
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "request.invalid", detail, hint)


async def read_json(request: Request, schema: Schema) -> Any:
    """The body, as the schema allows it.

    Raises:
        Problem: it is no JSON, or something else.
    """
    body = await request.body()
    if not body:
        raise invalid("body: it is missing")
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise Problem(
            400, "request.malformed", f"the body is no JSON, at character {error.pos}: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise Problem(400, "request.malformed", "the body is no JSON") from error
    if (wrong := misfit(value, schema, "body")) is not None:
        raise invalid(*wrong)
    return value


# --- routes


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path: its endpoint, and what OpenAPI describes of it."""

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    tag: str
    answers: Mapping[int, Any]
    parameters: tuple[Parameter, ...]
    body: tuple[str, Schema] | None  # the name and the schema of what it takes
    pattern: re.Pattern[str]

    async def answer(self, request: Request, parts: Mapping[str, str]) -> Response:
        """The endpoint's response to a request of which those are the parts of the path.

        Raises:
            Problem: a parameter is none that the route allows, or what the endpoint raises.
        """
        query = request.query_params
        values = {
            one.argument or one.name: one.read(parts[one.name] if one.in_path else query.get(one.name))
            for one in self.parameters
        }
        return await self.endpoint(request, **values)


class Router:
    """Routes below one prefix, under one heading of the description."""

    def __init__(self, tag: str, prefix: str = "") -> None:
        """Start with none."""
        self.routes: list[Route] = []
        self._tag = tag
        self._prefix = prefix

    def add(
        self,
        method: str,
        path: str,
        *parameters: Parameter,
        summary: str,
        answers: Mapping[int, Any],
        body: tuple[str, Schema] | None = None,
    ) -> Callable[[Endpoint], Endpoint]:
        """A decorator that adds the endpoint of that path; parts of the path are named in braces."""
        whole = self._prefix + path
        pattern = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(whole)))

        def declare(endpoint: Endpoint) -> Endpoint:
            self.routes.append(
                Route(method, whole, endpoint, summary, self._tag, answers, parameters, body, pattern)
            )
            return endpoint

        return declare
