"""Documents as responses: encoded once a tick, compressed once, not sent again to a client that has them."""

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gpudiag.model.codec import dumps

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
    if len(body) >= _GZIP_FROM_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
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
