"""The application: routes around one service, behind the gate."""

import contextlib
import json
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from gpudiag import __version__
from gpudiag.errors import GpudiagError
from gpudiag_api.access import Access
from gpudiag_api.gate import Gate
from gpudiag_api.machine_routes import machine_routes
from gpudiag_api.openapi import describe
from gpudiag_api.page import Page
from gpudiag_api.replies import Encoded, Problem, answer_problem, encode_body, reply
from gpudiag_api.run_routes import run_routes
from gpudiag_api.service import Service
from gpudiag_api.service_routes import metrics_routes, service_routes
from gpudiag_api.settings import Settings

_CHOICES = re.compile(r"\^\(([a-z|]+)\)\$")  # the patterns of parameters that take one of several names
# Polled by every script; and woken for each listener at each tick.
_DIRECT = ("/api/v1/devices", "/api/v1/stream")
_HINTS = {404: "GET /openapi.json lists every route", 405: "GET /openapi.json lists every route"}


def create_app(settings: Settings, *, static: Path | None = None) -> Gate:
    """The ASGI application of one service; it starts and stops with its lifespan."""
    service, routers = _make_service(settings)

    @contextlib.asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    # No interactive API pages: they would load scripts from elsewhere.
    inner = FastAPI(
        title="gpudiag",
        version=__version__,
        lifespan=live,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    for router in routers:
        inner.include_router(router)
    inner.state.routes = [route for router in routers for route in router.routes]

    def describe_all() -> Encoded:
        return encode_body(json.dumps(describe(service, inner.routes)).encode())

    @inner.get("/openapi.json", include_in_schema=False)
    async def read_description(request: Request) -> Response:
        return reply(request, service.cache.get("openapi", 0, describe_all))

    # What is no path of a route, by whatever method, may be a file of the page.
    inner.router.default = Route("/{path:path}", Page(service, static).answer).handle
    _answer_errors(inner)
    direct = {route.path: route.endpoint for route in inner.state.routes if route.path in _DIRECT}
    return Gate(inner, service, direct)


def _make_service(settings: Settings) -> tuple[Access, tuple[APIRouter, ...]]:
    """The machine's service or the hub, and its routes."""
    if settings.hub is not None:
        from gpudiag_api.hub_routes import HubService, hub_routes  # only a hub needs what asks other machines

        hub = HubService(settings, settings.hub)
        return hub, (hub_routes(hub), service_routes(hub))
    service = Service(settings)
    return service, (
        machine_routes(service),
        run_routes(service),
        service_routes(service),
        metrics_routes(service),
    )


def _answer_errors(inner: FastAPI) -> None:
    """Have every error answered as a problem."""
    for kind in (Problem, GpudiagError, Exception):
        inner.add_exception_handler(kind, _answer)
    inner.add_exception_handler(HTTPException, _answer_http)
    inner.add_exception_handler(RequestValidationError, _answer_validation)


async def _answer(request: Request, error: Exception) -> Response:
    return answer_problem(request, error)


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    codes = {404: "not_found", 405: "method_not_allowed", 400: "request.malformed"}
    code = codes.get(error.status_code, "request.refused")
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed_methods(request))
    problem = Problem(error.status_code, code, str(error.detail), _HINTS.get(error.status_code, ""), headers)
    return answer_problem(request, problem)


def _allowed_methods(request: Request) -> list[str]:
    """The methods that the path accepts, over all its routes; HEAD wherever there is GET."""
    found = [route for route in request.app.state.routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in found for method in route.methods or ()} or {"GET"}  # a file of the page
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


async def _answer_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    first = error.errors()[0]
    malformed = first["type"] == "json_invalid"
    status, code = (400, "request.malformed") if malformed else (422, "request.invalid")
    return answer_problem(request, Problem(status, code, *_describe_invalid(first)))


def _describe_invalid(error: dict[str, Any]) -> tuple[str, str]:
    """What is wrong with the request, in words, and a hint if there are choices."""
    place = ".".join(str(part) for part in error["loc"])
    context = error.get("ctx", {})
    if error["type"] == "json_invalid":
        return f"the body is no JSON, at character {error['loc'][-1]}: {context.get('error', '?')}", ""
    choices = _CHOICES.fullmatch(context.get("pattern", ""))
    if choices is not None:
        return (
            f"{place}: {str(error['input'])[:40]!r} is no choice",
            f"one of {choices[1].replace('|', ', ')}",
        )
    return f"{place}: {error['msg']}", ""
