"""Answers: documents, encoded and compressed once a tick; errors as application/problem+json (RFC 9457)."""

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gpudiag.errors import GpudiagError
from gpudiag.model.codec import dumps
from gpudiag_api.negotiation import accepts_gzip

# --- errors

MEDIA_TYPE = "application/problem+json"
_MAX_DETAIL_CHARACTERS = 500


class Problem(Exception):
    """A refused request; `members` are written besides the standard ones."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        hint: str = "",
        headers: dict[str, str] | None = None,
        **members: Any,
    ) -> None:
        """Refuse with that HTTP status; `code` is stable, `detail` is a sentence."""
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.headers = headers or {}
        self.members = members


def render_problem(problem: Problem, instance: str) -> Response:
    """The response for a problem with the request for the path `instance`."""
    document = {
        "type": "about:blank",
        "title": _title(problem.status),
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail[:_MAX_DETAIL_CHARACTERS],
        "hint": problem.hint[:_MAX_DETAIL_CHARACTERS],
        "instance": instance,
        **problem.members,
    }
    body = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
    headers = {"Cache-Control": "no-store", **problem.headers}
    return Response(body, problem.status, headers, MEDIA_TYPE)


def problem_of(error: GpudiagError) -> Problem:
    """The problem for an error of gpudiag's own."""
    members = getattr(error, "members", None) or {}
    return Problem(error.http_status, error.code, error.message, error.hint, **members)


def answer_problem(request: Request, error: Exception) -> Response:
    """The response to an exception: a Problem, a GpudiagError, or a bug of gpudiag, named as such."""
    if isinstance(error, GpudiagError):
        error = problem_of(error)
    if not isinstance(error, Problem):
        error = Problem(500, "internal", "a bug of gpudiag, not of this machine", "see the service's log")
    return render_problem(error, request.url.path)


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


# --- documents

JSON = "application/json"
_GZIP_FROM_BYTES = 500
_GZIP_LEVEL = 6


@dataclass(slots=True)
class Encoded:
    """One body with its ETag; it is compressed when first needed."""

    body: bytes
    media_type: str
    tag: str
    _compressed: bytes | None = None

    def compressed(self) -> bytes:
        """The body, compressed."""
        if self._compressed is None:
            self._compressed = gzip.compress(self.body, _GZIP_LEVEL, mtime=0)
        return self._compressed


def encode_body(body: bytes, media_type: str = JSON) -> Encoded:
    """A body with an ETag made from its bytes."""
    return Encoded(body, media_type, f'"{hashlib.blake2b(body, digest_size=9).hexdigest()}"')


def encode_document(noun: Any) -> Encoded:
    """A noun's document as a body."""
    return encode_body(dumps(noun).encode())


def reply(request: Request, encoded: Encoded, *, cache: str = "no-cache") -> Response:
    """The response: 304 if the client has the body, compressed if it accepts gzip."""
    headers = {"ETag": encoded.tag, "Cache-Control": cache, "Vary": "Accept-Encoding"}
    if _has_it(request.headers.get("if-none-match"), encoded.tag):
        return Response(None, 304, headers)
    body = encoded.body
    if len(body) >= _GZIP_FROM_BYTES and accepts_gzip(request.headers.get("accept-encoding")):
        body = encoded.compressed()
        headers["Content-Encoding"] = "gzip"
    return Response(body, 200, headers, encoded.media_type)


def _has_it(given: str | None, tag: str) -> bool:
    if given is None:
        return False
    return given.strip() == "*" or tag in (part.strip().removeprefix("W/") for part in given.split(","))


class Cache:
    """Bodies by name, each valid as long as its version stays the same."""

    def __init__(self) -> None:
        """Start empty."""
        self._kept: dict[str, tuple[object, Encoded]] = {}

    def get(self, name: str, version: object, make: Callable[[], Encoded]) -> Encoded:
        """The body of that name and version, made if it is not cached."""
        kept = self._kept.get(name)
        if kept is not None and kept[0] == version:
            return kept[1]
        encoded = make()
        self._kept[name] = (version, encoded)
        return encoded
