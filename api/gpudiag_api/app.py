"""The application: routes around one service, behind the gate."""

import json
import logging
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from gpudiag.errors import GpudiagError
from gpudiag_api.access import Access
from gpudiag_api.gate import Gate, Receive, Scope, Send
from gpudiag_api.machine_routes import machine_routes
from gpudiag_api.openapi import describe
from gpudiag_api.page import Page
from gpudiag_api.replies import Encoded, Problem, answer_problem, encode_body, reply
from gpudiag_api.routes import Route, Router
from gpudiag_api.run_routes import run_routes
from gpudiag_api.service import Service
from gpudiag_api.service_routes import metrics_routes, service_routes
from gpudiag_api.settings import Settings

_DIRECT = ("/api/v1/devices",)  # polled by every page and script
_DESCRIPTION = "/openapi.json"
_HINT = f"GET {_DESCRIPTION} lists every route"
_log = logging.getLogger("gpudiag.service")


def create_app(settings: Settings, *, static: Path | None = None) -> Gate:
    """The ASGI application of one service; it starts and stops with its lifespan."""
    service, routers = _make_service(settings)
    routes = [route for router in routers for route in router.routes]
    direct = {route.path: route.endpoint for route in routes if route.path in _DIRECT}
    return Gate(Application(service, routes, Page(service, static)), service, direct)


class Application:
    """The routes of one service, then the files of its page; every error is answered as a problem."""

    def __init__(self, service: Access, routes: list[Route], page: Page) -> None:
        """Answer by these routes; a path that is none of theirs is a file of the page."""
        self.service = service
        self.routes = routes
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or start and stop the service with the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except (Problem, GpudiagError) as error:
            response = answer_problem(request, error)
        except Exception as error:  # noqa: BLE001 - a bug costs one answer
            _log.error("a bug of gpudiag in an answer", exc_info=error)
            response = answer_problem(request, error)
        await response(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start the service and stop it, when the server asks for it (ASGI's lifespan)."""
        await receive()
        await self.service.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.service.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, request: Request) -> Response:
        path, method = request.scope["path"], request.method
        allowed: set[str] = set()
        for route in self.routes:
            found = route.pattern.fullmatch(path)
            if found is not None and route.method == method:
                return await route.answer(request, found.groupdict())
            if found is not None:
                allowed.add(route.method)
        if not allowed and method == "GET":
            return await self._answer_file(request)
        raise _not_allowed(allowed or {"GET"})  # what is no route may be a file of the page

    async def _answer_file(self, request: Request) -> Response:
        if request.scope["path"] == _DESCRIPTION:
            described = self.service.cache.get("openapi", 0, self._description)
            return reply(request, described)
        return await self._page.answer(request)

    def _description(self) -> Encoded:
        return encode_body(json.dumps(describe(self.service, self.routes)).encode())


def _not_allowed(methods: set[str]) -> Problem:
    """The problem of a path with another method; HEAD is allowed wherever GET is."""
    named = sorted(methods | ({"HEAD"} if "GET" in methods else set()))
    return Problem(405, "method_not_allowed", "Method Not Allowed", _HINT, {"Allow": ", ".join(named)})


def _make_service(settings: Settings) -> tuple[Access, tuple[Router, ...]]:
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
