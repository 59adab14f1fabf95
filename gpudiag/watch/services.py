"""Other machines, by the API of their `gpudiag serve`: a thread for each asks every few seconds, so that one that hangs costs its own row."""

import asyncio
import http.client
import json
import math
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from time import time
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gpudiag.errors import GpudiagError, UsageError
from gpudiag.model.documents import from_document
from gpudiag.model.finding import Finding
from gpudiag.model.service import Findings, Live
from gpudiag.model.service import Series as SeriesDocument
from gpudiag.reference.service_port import SERVICE_PORT
from gpudiag.watch.frame import POINTS, SERIES, Frame, History
from gpudiag.watch.recording import Recorder

_T = TypeVar("_T")
DEFAULT_PORT = SERVICE_PORT
MOST_HOSTS = 200
_ANSWER_SECONDS = 4.0
_MOST_BYTES = 16 << 20
_SILENT_TICKS = 3  # without an answer for so many intervals a machine is shown as silent
_WORDS_OF_STATUS = {
    401: "it wants a token: name a file with --token-file",
    403: "the token may not read",
    404: "there is no gpudiag service at this address",
    421: "it does not go by this name: start it with --allow-host",
    503: "it is starting",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a machine's service is."""

    name: str  # as the user has written it
    host: str
    port: int
    is_tls: bool = False
    path: str = ""  # in front of /api, behind a proxy


def parse_hosts(texts: Sequence[str]) -> tuple[Address, ...]:
    """The addresses that the texts name: `gpu1`, `gpu1:9000`, `https://proxy/gpus`; each once.

    Raises:
        UsageError: one is no address, or there are none, or too many.
    """
    addresses = tuple(dict.fromkeys(_address(text.strip()) for text in texts if text.strip()))
    if not addresses:
        raise UsageError("no machine is named", hint="gpudiag watch --hosts gpu1,gpu2")
    if len(addresses) > MOST_HOSTS:
        raise UsageError(
            f"{len(addresses)} machines are more than one view shows", hint=f"name at most {MOST_HOSTS}"
        )
    return addresses


def read_host_file(path: Path) -> list[str]:
    """The machines that a file names: the first word of each line; `#` begins a comment.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text"
        raise UsageError(
            f"--hosts-file {path} cannot be read: {why}", hint="one machine a line: gpu1, gpu1:9000"
        ) from error
    named = (line.partition("#")[0].split() for line in lines)
    return [words[0] for words in named if words]


def _address(text: str) -> Address:
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https") or parts.username or parts.query:
        raise UsageError(
            f"{text!r} is no address of a service", hint="gpu1, gpu1:9000 or https://proxy.example/gpus"
        )
    is_tls = parts.scheme == "https"
    standard = DEFAULT_PORT if "://" not in text else 443 if is_tls else 80
    return Address(text, host, port or standard, is_tls, parts.path.rstrip("/"))


class ServicesFeed:
    """Several machines, each by its service."""

    def __init__(
        self,
        addresses: Sequence[Address],
        interval_seconds: float,
        token: str | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Ask nobody before `run`."""
        self._machines = [_Machine(address, interval_seconds, token) for address in addresses]
        self._recorder = recorder

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Each machine as it was received last."""
        now = time()
        return tuple(machine.frame(now) for machine in self._machines)

    @property
    def note(self) -> str:
        """How the recording goes on."""
        return "" if self._recorder is None else self._recorder.note

    async def run(self, changed: Callable[[], None]) -> None:
        """Ask all of them until cancelled."""
        loop = asyncio.get_running_loop()

        def take(machine: _Machine) -> None:
            if self._recorder is not None:
                for event, document, at in machine.pop_news():
                    self._recorder.write(machine.address.name, event, document, at)
            changed()

        def hand_over(machine: _Machine) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(take, machine)

        for machine in self._machines:
            machine.start(hand_over, keeps_news=self._recorder is not None)
        try:
            await asyncio.Event().wait()
        finally:
            for machine in self._machines:
                machine.stop()

    def seek(self, seconds: float) -> None:
        """Nothing: what happens now cannot be wound back."""

    def hold(self, *, is_held: bool) -> None:
        """Nothing: the machines go on; only the picture stands still."""


class _RefusedError(Exception):
    """The service answered with another status than 200."""


class _Machine:
    """One machine: its thread asks, the others read what it has put down."""

    def __init__(self, address: Address, interval_seconds: float, token: str | None) -> None:
        self.address = address
        self._interval = interval_seconds
        self._headers = {"Accept": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        self._ended = Event()
        self._lock = Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._live: Live | None = None
        self._findings: tuple[Finding, ...] = ()
        self._version = -1
        self._history = History()
        self._has_history = False
        self._problem: str | None = None
        self._received_at: float | None = None
        self._news: list[tuple[str, object, float]] = []
        self._keeps_news = False

    def start(self, changed: Callable[["_Machine"], None], *, keeps_news: bool) -> None:
        self._keeps_news = keeps_news
        # A daemon, so that a name service that hangs keeps nobody from leaving.
        Thread(target=self._run, args=(changed,), name=self.address.name, daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def frame(self, now: float) -> Frame:
        with self._lock:
            problem = self._problem
            limit = max(_SILENT_TICKS * self._interval, _ANSWER_SECONDS)
            if (
                problem is None
                and self._received_at is not None
                and now - self._received_at > limit + self._interval
            ):
                problem = "it does not answer"
            history = self._history.copied()
            return Frame(
                self.address.name,
                self._live,
                self._findings,
                history,
                problem,
                self._received_at,
                is_here=False,
            )

    def pop_news(self) -> list[tuple[str, object, float]]:
        with self._lock:
            news, self._news = self._news, []
        return news

    def _run(self, changed: Callable[["_Machine"], None]) -> None:
        while not self._ended.is_set():
            try:
                self._ask()
            except (GpudiagError, _RefusedError, OSError, ValueError, http.client.HTTPException) as error:
                self._disconnect()
                with self._lock:
                    self._problem = describe_refusal(error)
            if not self._ended.is_set():
                changed(self)
            self._ended.wait(self._interval)
        self._disconnect()

    def _ask(self) -> None:
        live = self._read("/api/v1/devices", Live)
        findings = live.findings
        if live.finding_count > len(findings):
            whole = (
                self._read("/api/v1/findings", Findings) if live.findings_version != self._version else None
            )
            findings = self._findings if whole is None else whole.findings
        older = {} if self._has_history else self._read_history()
        with self._lock:
            for uuid, series in older.items():
                self._history.put_before(uuid, series)
            self._has_history = True
            self._live, self._findings, self._version = live, findings, live.findings_version
            self._history.add(live)
            self._problem, self._received_at = None, time()
            if self._keeps_news:
                self._news.append(("live", live, self._received_at))

    def _read_history(self) -> Mapping[str, Mapping[str, tuple[float | None, ...]]]:
        """What the service remembers of the last minutes; an older service may not have some of the series."""
        step = max(1, math.ceil(self._interval))
        now = time()
        names = ",".join(SERIES)
        try:
            document = self._read(
                f"/api/v1/history?from={now - step * POINTS:.0f}&to={now:.0f}&step={step}&series={names}",
                SeriesDocument,
            )
        except _RefusedError:
            return {}
        return {gpu.uuid: gpu.series for gpu in document.devices}

    def _read(self, path: str, kind: type[_T]) -> _T:
        connection = self._connect()
        connection.request("GET", self.address.path + path, headers=self._headers)
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
        if answer.status != http.client.OK:
            raise _RefusedError(_WORDS_OF_STATUS.get(answer.status, f"it answered with HTTP {answer.status}"))
        document: Any = from_document(json.loads(body))
        if isinstance(document, kind):
            return document
        raise ValueError(f"not a {kind.__name__}")

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            address = self.address
            if address.is_tls:
                context = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(
                    address.host, address.port, timeout=_ANSWER_SECONDS, context=context
                )
            else:
                self._connection = http.client.HTTPConnection(
                    address.host, address.port, timeout=_ANSWER_SECONDS
                )
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def describe_refusal(error: Exception) -> str:
    """Why a machine gives nothing, in words."""
    if isinstance(error, _RefusedError):
        return str(error)
    if isinstance(error, socket.gaierror):
        return "there is no machine of this name"
    if isinstance(error, TimeoutError):
        return f"no answer within {_ANSWER_SECONDS:.0f} s"
    if isinstance(error, ConnectionRefusedError):
        return "no service listens there: start `gpudiag serve` on it"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it answers with something else than gpudiag's documents"
