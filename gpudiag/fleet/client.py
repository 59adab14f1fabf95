"""One request at a time to another machine's service, bounded in time and size: the answer may be anything.

It sends the machine's own token alone, follows no redirect, verifies certificates, takes no compressed body.
"""

import asyncio
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from time import time
from typing import Any

import httptools

from gpudiag import __version__
from gpudiag.fleet.addresses import Address
from gpudiag.time_limit import within

MAX_BODY_BYTES = 2 << 20  # 72 GPUs with eight processes each are a quarter of it
_MAX_HEAD_BYTES = 32 << 10
_READ_BYTES = 64 << 10
_NAME_SECONDS = 60.0  # for so long a resolved name is used again
_OK = 200


class FleetError(Exception):
    """A machine gave no document; its words are a sentence that goes on with "it" (the machine)."""


class NoAnswerError(FleetError):
    """Nothing came, or not in time."""


class RefusedError(FleetError):
    """The service answered, and not with a document."""

    def __init__(self, status: int, words: str) -> None:
        """Keep the HTTP status."""
        super().__init__(words)
        self.status = status


class UnreadableError(FleetError):
    """What came is no document of gpudiag's, or more than is read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One document, and the machine's clock by its Date header."""

    document: dict[str, Any]
    date_text: str  # as it came; empty where there was none
    asked_at: float  # Unix seconds of this machine's clock
    answered_at: float
    size_bytes: int


class MachineClient:
    """The connection to one machine, kept open between requests."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        """Connect with the first request."""
        self.address = address
        self._tls = (tls or _system_tls()) if address.is_tls else None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._resolved: tuple[float, str] | None = None

    async def read(self, path: str, seconds: float, headers: dict[str, str] | None = None) -> Answer:
        """The document at that path below /api/v1/, within `seconds`. Raises FleetError: there is none."""
        try:
            return await within(seconds, self._read(path, headers or {}))
        except asyncio.TimeoutError as error:
            self.close()
            raise NoAnswerError(f"no answer within {seconds:.0f} s") from error
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise NoAnswerError(f"its certificate is not trusted: {error.verify_message}") from error
        except ssl.SSLError as error:
            self.close()
            raise NoAnswerError(f"TLS failed: {(error.reason or str(error)).lower()}") from error
        except socket.gaierror as error:
            self.close()
            raise NoAnswerError(f"its name is not known: {error.strerror}") from error
        except ConnectionRefusedError as error:
            self.close()
            raise NoAnswerError(f"nothing listens on port {self.address.port}") from error
        except OSError as error:
            self.close()
            raise NoAnswerError((error.strerror or str(error) or "the connection broke").lower()) from error
        except BaseException:  # cancelled, or what came is no document: nothing else may be read from there
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, where there is one."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _read(self, path: str, headers: dict[str, str]) -> Answer:
        request = self._request(path, headers)
        asked_at = time()
        reused = self._streams is not None
        try:
            response = await self._exchange(request)
        except (ConnectionError, _ClosedError):
            if not reused:  # a kept connection may have been closed meanwhile, which is nobody's fault
                raise
            self.close()
            asked_at = time()
            response = await self._exchange(request)
        answered_at = time()
        if not response.stays:
            self.close()
        if response.status != _OK:
            raise RefusedError(response.status, _describe_status(response.status))
        return Answer(_parse(response), response.date, asked_at, answered_at, len(response.body))

    def _request(self, path: str, headers: dict[str, str]) -> bytes:
        address = self.address
        given = {
            "Host": address.host_header,
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"gpudiag/{__version__}",
            **({"Authorization": f"Bearer {address.token}"} if address.token else {}),
            **headers,
        }
        lines = [
            f"GET {address.path}/api/v1/{path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in given.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    async def _exchange(self, request: bytes) -> "_Response":
        if self._streams is None:
            self._streams = await self._connect()
        reader, writer = self._streams
        writer.write(request)
        response = _Response()
        parser = httptools.HttpResponseParser(response)
        while not response.is_whole:
            data = await reader.read(_READ_BYTES)
            response.note_size(len(data))
            if not data:
                if response.ends_with_connection(parser):
                    break
                raise _ClosedError
            try:
                parser.feed_data(data)
            except httptools.HttpParserError as error:
                inner = error.__context__
                raise (
                    inner if isinstance(inner, FleetError) else UnreadableError("it does not answer in HTTP")
                ) from error
        response.status, response.stays = parser.get_status_code(), parser.should_keep_alive()
        return response

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self.address
        place = await self._resolve()
        if self._tls is None:
            return await asyncio.open_connection(place, address.port)
        return await asyncio.open_connection(place, address.port, ssl=self._tls, server_hostname=address.host)

    async def _resolve(self) -> str:
        """The numeric address of the host; a name service that hangs costs a thread."""
        host = self.address.host
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            pass
        if self._resolved is None or time() - self._resolved[0] > _NAME_SECONDS or self._resolved[0] > time():
            self._resolved = time(), (await resolve(host))[0]
        return self._resolved[1]


@cache
def _system_tls() -> ssl.SSLContext:
    """Verification by the system's authorities, read once for all machines, as it takes long."""
    return ssl.create_default_context()


class _ClosedError(OSError):
    """The connection ended before the answer did."""

    def __str__(self) -> str:
        return "the connection ended before the answer did"


@dataclass(slots=True)
class _Response:
    """What the parser has found so far, within its bounds."""

    status: int = 0
    stays: bool = False
    date: str = ""
    encoding: str = ""
    is_whole: bool = False
    body: bytearray = field(default_factory=bytearray)
    _head_is_read: bool = False
    _size: int = 0

    def note_size(self, size: int) -> None:
        self._size += size
        if not self._head_is_read and self._size > _MAX_HEAD_BYTES + _READ_BYTES:
            raise UnreadableError("the head of its answer has no end")
        if self._size > MAX_BODY_BYTES + _MAX_HEAD_BYTES + _READ_BYTES:  # counts what frames the body, too
            raise UnreadableError(f"its answer is larger than {MAX_BODY_BYTES >> 20} MiB")

    def ends_with_connection(self, parser: Any) -> bool:
        """Whether the body has no length, and so ends with the connection."""
        return self._head_is_read and not parser.should_keep_alive() and bool(self.body)

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"date":
            self.date = value.decode("latin-1")[:64]
        elif lowered == b"content-encoding":
            self.encoding = value.decode("latin-1").strip().lower()
        elif lowered == b"content-length" and value.isdigit() and int(value) > MAX_BODY_BYTES:
            raise UnreadableError(f"its answer is larger than {MAX_BODY_BYTES >> 20} MiB")

    def on_headers_complete(self) -> None:
        self._head_is_read = True
        if self.encoding not in ("", "identity"):
            raise UnreadableError("its answer is compressed, which was not asked for")

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > MAX_BODY_BYTES:
            raise UnreadableError(f"its answer is larger than {MAX_BODY_BYTES >> 20} MiB")

    def on_message_complete(self) -> None:
        self.is_whole = True


def _parse(response: _Response) -> dict[str, Any]:
    try:
        document = json.loads(response.body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("its answer is no JSON") from error
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise UnreadableError("its answer is JSON, and no document of gpudiag")
    return document


def _refuse_constant(text: str) -> Any:
    raise ValueError(text)


def _describe_status(status: int) -> str:
    words = {
        401: "it wants a token, or another one",
        403: "its token may not read",
        404: "there is no gpudiag service at this address",
        421: "it does not go by this name: start it with --allow-host",
        429: "too many requests, or wrong tokens, came from here",
        503: "it is starting, and has no data yet",
    }
    if 300 <= status < 400:
        return f"it redirects (HTTP {status}), which is not followed"
    return words.get(status, f"it answered with HTTP {status}")


async def resolve(host: str) -> list[str]:
    """The numeric addresses of a name, by a thread that nobody waits for. Raises OSError: it is not known."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def put(result: "list[str] | OSError") -> None:
        if found.done():
            return
        if isinstance(result, OSError):
            found.set_exception(result)
        else:
            found.set_result(result)

    # Neither the loop's own pool, of a few threads that all names share, nor one that the end of the process
    # waits for.
    threading.Thread(target=_ask_names, args=(host, loop, put), daemon=True, name=f"name {host}").start()
    return await found


def _ask_names(
    host: str, loop: asyncio.AbstractEventLoop, put: "Callable[[list[str] | OSError], None]"
) -> None:
    result: list[str] | OSError
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        result = list(dict.fromkeys(str(info[4][0]) for info in infos))
    except OSError as error:
        result = error
    except UnicodeError:
        result = socket.gaierror(socket.EAI_NONAME, "this is no name of a host")
    if not loop.is_closed():
        loop.call_soon_threadsafe(put, result)
