"""The checks on every request before it is handled: its caller, its origin, its size and its speed.

A plain ASGI application around the inner one. It refuses what a browser was tricked into (another Host, which
is DNS rebinding; another origin), what is too large or too slow, and what the caller may not do. The rest
of the service can rely on it: a request that gets there is allowed to read, or to act, as its route needs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request, cookie_parser
from starlette.responses import Response

from gpudiag.time_limit import within
from gpudiag_api.access import Access
from gpudiag_api.replies import Problem, render_problem
from gpudiag_api.settings import is_address
from gpudiag_api.tokens import ACT, READ

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Endpoint = Callable[[Request], Awaitable[Response]]

MAX_BODY_BYTES = 64 * 1024
MAX_HEADER_BYTES = 16 * 1024
MAX_TARGET_BYTES = 4096
BODY_SECONDS = 10.0
_SHOWN_CHARACTERS = 80
ROLE = "gpudiag.role"  # where the scope holds the caller's role
# in the scope of a HEAD, whose `receive` reports a disconnect, though the client is there
AS_HEAD = "gpudiag.as_head"

_SAFE = ("GET", "HEAD", "OPTIONS")
_SESSION_PATH = "/api/v1/session"
# Paths that need no token: liveness, and the way to show one. Without a token the page holds no data.
_OPEN_PATHS = ("/healthz", "/readyz", _SESSION_PATH)
_GUARDED_PREFIXES = ("/api/", "/metrics", "/openapi.json")
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_log = logging.getLogger("gpudiag.access")


class Gate:
    """The one way into the service."""

    def __init__(
        self, application: Application, service: Access, direct: Mapping[str, Endpoint] | None = None
    ) -> None:
        """Guard `application`, which answers for `service`.

        A GET of a path in `direct` goes straight to its endpoint: these take no parameters, and the way
        through the application costs twice as much as the rest of such an answer, of a stream at each event.
        """
        self.service = service
        self._application = application
        self._direct = direct or {}
        self._settings = settings = service.settings
        self._sessions = service.sessions
        self._host_names = settings.host_names()
        self._open_to_all = not settings.reading_needs_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer why not; log it."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        began, status = perf_counter(), 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            await self._let_in(scope, receive, send_noted)
        except Problem as problem:
            await render_problem(problem, scope["path"])(scope, receive, send_noted)
        finally:
            _log.info(
                "request",
                extra={
                    "method": scope["method"],
                    "path": scope["path"],  # without the query, which is the caller's business
                    "status": status,
                    "seconds": round(perf_counter() - began, 6),
                    "client": client_of(scope),
                },
            )

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, and have it answered with its path below the root path.

        Raises:
            Problem: the request is refused.
        """
        is_bare_root = scope["path"] == self._settings.root_path
        scope["path"] = self._inner_path(scope["path"])
        scope["raw_path"] = scope["path"].encode("utf-8", "surrogatepass")
        headers = _single_headers(scope)
        self._check(scope, headers)
        if is_bare_root and scope["method"] in _SAFE:
            # The page's own addresses are relative: without the slash they would miss the prefix.
            there = {"Location": f"{self._settings.root_path}/"}
            await Response(status_code=308, headers=there)(scope, receive, send)
            return
        receive = await _read_body(scope, headers, receive)
        if scope["method"] == "HEAD":  # as GET; the server itself leaves the body out
            scope, receive = {**scope, "method": "GET", AS_HEAD: True}, _nothing_follows
        endpoint = self._direct.get(scope["path"]) if scope["method"] == "GET" else None
        if endpoint is None:
            await self._application(scope, receive, send)
        else:
            answer = await endpoint(Request(scope, receive))
            await answer(scope, receive, send)

    def _inner_path(self, path: str) -> str:
        """The path below the root path, whether or not the proxy has taken that off."""
        root = self._settings.root_path
        if root and (path == root or path.startswith(f"{root}/")):
            return path[len(root) :] or "/"
        return path

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Check the request's size, host, role and origin, and whether it may act; note its role.

        Raises:
            Problem: the request is refused.
        """
        self._check_size(scope)
        self._check_host(scope, headers)
        role, by_cookie = self._role(scope, headers)
        scope[ROLE] = role
        unsafe = scope["method"] not in _SAFE
        if unsafe:
            self._check_origin(headers, by_cookie=by_cookie)
        path = scope["path"]
        if path in _OPEN_PATHS or not path.startswith(_GUARDED_PREFIXES):
            return
        if role is None:
            detail = "a token is needed" if b"authorization" not in headers else "this token is not known"
            hint = "Authorization: Bearer TOKEN, with a token of the service's token file"
            raise Problem(401, "access.token", detail, hint, {"WWW-Authenticate": "Bearer"})
        if unsafe:
            self._check_actions(role, credentials=b"authorization" in headers or by_cookie)

    def _check_size(self, scope: Scope) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            raise Problem(431, "request.headers", f"the headers exceed {MAX_HEADER_BYTES} bytes")
        if len(scope["path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise Problem(414, "request.target", f"the address exceeds {MAX_TARGET_BYTES} bytes")
        if "\0" in scope["path"]:
            raise Problem(400, "request.path", "the address holds a null character")

    def _check_host(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Refuse an unknown host name: a page of another site may have had it resolved to this machine.

        A numeric address cannot be rebound like that. A service that other machines can reach accepts any: it
        may have got one a moment ago, or a router may translate it.
        """
        name = _host_name(headers.get(b"host", b""))
        if name is None:
            raise Problem(400, "request.host", "the request names no host")
        if name in self._host_names or (not self._settings.on_loopback and is_address(name)):
            return
        shown = name[:_SHOWN_CHARACTERS]
        ways = f"start it with --allow-host {shown}"
        reached = (scope.get("server") or ("",))[0]
        if is_address(reached):
            ways = f"ask for {self._settings.url_of(reached)}, or {ways}"
        raise Problem(421, "access.host", f"this service has no host name {shown}", ways)

    def _role(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[str | None, bool]:
        """The caller's role, and whether a cookie gave it."""
        authorization = headers.get(b"authorization")
        if authorization is not None:
            kind, _, token = authorization.decode("latin-1").partition(" ")
            return (
                self.service.role_of_token(client_of(scope), token.strip())
                if kind.lower() == "bearer"
                else None
            ), False
        session = _cookie(headers, self._settings.cookie)
        role = None if session is None else self._sessions.role_of(session)
        if role is not None:
            return role, True
        forwarded = any(name in headers for name in _FORWARDED)
        if self._open_to_all and not (forwarded and self._settings.tokens):
            return READ, False
        return None, False

    def _check_origin(self, headers: dict[bytes, bytes], *, by_cookie: bool) -> None:
        """Refuse changes that a page of another site asks for in the name of this browser's user (CSRF)."""
        site = headers.get(b"sec-fetch-site", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if site not in ("", "same-origin", "none") or (origin and _place_of(origin) != host):
            raise Problem(403, "access.origin", "a page of another site may not change anything")
        if by_cookie and not origin and not site:
            raise Problem(
                403, "access.origin", "a request with a cookie must have an Origin or Sec-Fetch-Site header"
            )

    def _check_actions(self, role: str, *, credentials: bool) -> None:
        if not self._settings.allow_actions:
            raise Problem(
                403, "access.actions_off", "this service starts nothing", "start it with --allow-actions"
            )
        if role != ACT and not credentials:
            raise Problem(
                401,
                "access.token",
                "a token is needed to act",
                "Authorization: Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )
        if role != ACT:
            raise Problem(403, "access.role", "this token may read, not act", "use a token of an `act:` line")


def role_of(request: Request) -> str | None:
    """The role of the caller of a request that has passed the gate."""
    role: str | None = request.scope.get(ROLE)
    return role


def client_of(scope: Scope) -> str:
    """The address that the request came from; `-` if there is none."""
    return str((scope.get("client") or ("-",))[0])


def _single_headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers by name. Raises Problem: Host, Authorization, Content-Length or Origin comes twice."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in headers and name in (b"host", b"authorization", b"content-length", b"origin"):
            raise Problem(400, "request.headers", f"two headers {name.decode('latin-1')}")
        headers[name] = value
    return headers


def _place_of(origin: str) -> str | None:
    """The host and port of an Origin header; None where it is no URL (`null`, `http://[`)."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


@lru_cache(256)
def _host_name(given: bytes) -> str | None:
    """The host that a Host header names, in lower case; None if it is not a host with or without a port."""
    text = given.decode("latin-1").lower()
    try:
        parts = urlsplit(f"//{text}")
        parts.port  # noqa: B018 - refused where it is no number
    except ValueError:
        return None
    return parts.hostname if parts.netloc == text and parts.username is None else None


def _cookie(headers: dict[bytes, bytes], name: str) -> str | None:
    """The value of a cookie, beside which other programs' cookies may stand that break RFC 6265."""
    return cookie_parser(headers.get(b"cookie", b"").decode("latin-1")).get(name)


async def _read_body(scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
    """A `receive` that gives the application the whole body, which has been read already.

    Raises:
        Problem: it is too large, too slow, or not JSON.
    """
    if scope["method"] in _SAFE:
        return receive
    if int(headers.get(b"content-length", b"0") or 0) > MAX_BODY_BYTES:
        raise _too_large()
    try:
        body = await within(BODY_SECONDS, _collect(receive))
    except asyncio.TimeoutError as error:
        raise Problem(408, "request.slow", "the body did not come in time") from error
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if body and kind != b"application/json":
        raise Problem(415, "request.content_type", "the body must be application/json")
    return _replay(body, receive)


async def _collect(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "request.body", "the connection ended before the body did")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return body


async def _nothing_follows() -> Message:
    """A disconnect, after a HEAD: its answer ends at once, even where GET would go on streaming."""
    return {"type": "http.disconnect"}


def _replay(body: bytes, receive: Receive) -> Receive:
    replayed_once = False

    async def replayed() -> Message:
        nonlocal replayed_once
        if replayed_once:
            return await receive()
        replayed_once = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _too_large() -> Problem:
    return Problem(
        413, "request.body", f"the body exceeds {MAX_BODY_BYTES} bytes", headers={"Connection": "close"}
    )
