"""The service as a process: its socket, its addresses for users, uvicorn around the application."""

import asyncio
import contextlib
import errno
import gc
import json
import logging
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from types import FrameType

import uvicorn

from gpudiag.compat import UTC
from gpudiag.errors import UsageError
from gpudiag.linux.allocator import keep_little_memory, return_free_memory
from gpudiag.model.untrusted_text import escape_controls, escape_steering, mask_text
from gpudiag.probe.host.interfaces import read_addresses
from gpudiag_api.app import create_app
from gpudiag_api.gate import Gate
from gpudiag_api.log_writer import LogWriter
from gpudiag_api.protocol import BoundedProtocol
from gpudiag_api.settings import Settings, url_host

_FIELDS = ("method", "path", "status", "seconds", "client", "run")

_BACKLOG = 2048
_MAX_CONNECTIONS = 4096
_OWN_DESCRIPTORS = 100  # children, runs, files, the store
_STOP_SECONDS = 3
_KEEP_ALIVE_SECONDS = 20
_MOST_ADDRESSES = 4  # a host of containers has dozens; the first are its own
# Not this machine's, without the interface that a link-local address needs, or of a family that is switched
# off.
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EINVAL, errno.EAFNOSUPPORT)
_STOPPING = (signal.SIGINT, signal.SIGTERM)


class JsonLines(logging.Formatter):
    """One JSON object a line, with the fields of a request or a run."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; never a token: no record holds a header or a query, and secrets are masked."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": record.levelname.lower(), "message": mask_text(record.getMessage())}
        line |= {name: value for name in _FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["traceback"] = mask_text(self.formatException(record.exc_info))
        # In ASCII: what a client sends must not steer the terminal that shows the log.
        return json.dumps(line)


class ShortLines(logging.Formatter):
    """Short lines for a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The record in one line."""
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        text = f"{at} {record.getMessage()}"
        if getattr(record, "method", None):
            milliseconds = 1e3 * getattr(record, "seconds", 0.0)
            method, path, status = (getattr(record, name) for name in ("method", "path", "status"))
            text = f"{at} {status} {method} {path} {milliseconds:.1f} ms"
        text = escape_controls(mask_text(text))
        if record.exc_info:
            text += "\n" + escape_steering(mask_text(self.formatException(record.exc_info)))
        return text


def start_logging(*, terminal: bool) -> LogWriter:
    """Log to standard error; on a terminal only what is not routine. `flush` what it gives at the end."""
    # Neither format has source line, thread or process: looking them up would cost as much as an answer.
    logging._srcfile = None  # from the library's guide, under "Optimization"
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    writer = LogWriter(sys.stderr.fileno())
    writer.setFormatter(ShortLines() if terminal else JsonLines())
    if terminal:
        writer.addFilter(_is_news)
    for name in ("gpudiag", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [writer]
        logger.propagate = False
        logger.setLevel(logging.INFO if name == "gpudiag" else logging.WARNING)
    return writer


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a person at a terminal wants to see it: refusals and changes, not every read."""
    return getattr(record, "method", "") not in ("GET", "HEAD") or getattr(record, "status", 0) >= 500


def open_socket(settings: Settings) -> socket.socket:
    """The socket that the service listens on; port 0 takes a free one.

    Raises:
        UsageError: the address is not this machine's, or is in use.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with contextlib.ExitStack() as closing:
            listening = closing.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((settings.host, settings.port))
            listening.listen(_BACKLOG)
            closing.pop_all()
    except (OSError, UnicodeError) as error:  # the latter: what no name of a host can be
        words = (
            "this is no name of a host" if isinstance(error, UnicodeError) else error.strerror or str(error)
        )
        raise UsageError(
            f"cannot listen on {settings.host}, port {settings.port}: {words}",
            hint=_way_to_listen(error, settings.port),
        ) from error
    return listening


def _way_to_listen(error: OSError | UnicodeError, port: int) -> str:
    """What to do where the service cannot listen."""
    if not isinstance(error, OSError) or isinstance(error, socket.gaierror) or error.errno in _NOT_OURS:
        return (
            "name an address of this machine with --host: `ip -brief address`"
            " lists them; 0.0.0.0 is all of them"
        )
    if error.errno == errno.EADDRINUSE and port:
        return f"name another with --port; `ss -ltnp 'sport = :{port}'` shows who has this one"
    if error.errno == errno.EACCES:
        return f"ports below {_first_free_port()} are for root: name another with --port"
    return ""


def _first_free_port() -> int:
    """The first port that needs no privilege (ip(7), ip_unprivileged_port_start)."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    return 1024


def describe_addresses(settings: Settings) -> list[str]:
    """Lines with a URL that works on this machine, and the way to reach it from another one."""
    fragment = f"#token={settings.tokens.known[0][1]}" if settings.tokens.made else ""
    lines = [f"gpudiag serve: {settings.url()}{fragment}"]
    if settings.on_loopback:
        host = socket.gethostname()
        there = url_host(settings.host)
        lines.append(f"  from elsewhere: ssh -L {settings.port}:{there}:{settings.port} {host}")
    elif settings.on_every_address:
        lines += [f"  from elsewhere: {settings.url_of(address)}" for address in _outer_addresses(settings)]
    if settings.tokens and not settings.tokens.made:
        lines.append("  log in with a token of the token file")
    if not settings.allow_actions and settings.hub is None:
        lines.append("  read only; --allow-actions allows callers to start runs")
    if settings.state_problem:
        lines.append(f"  {settings.state_problem}")
    return lines


def _outer_addresses(settings: Settings) -> list[str]:
    """The addresses at which other machines may reach this one; its name if there are none."""
    found = [ip_address(text) for texts in read_addresses().values() for text in texts]
    wanted = [one for one in found if not one.is_loopback and not one.is_link_local]
    if settings.host != "::":
        wanted = [one for one in wanted if one.version == 4]
    return [str(one) for one in wanted][:_MOST_ADDRESSES] or [socket.gethostname()]


def run_service(
    settings: Settings, listening: socket.socket, *, terminal: bool, tls: tuple[Path, Path] | None = None
) -> int | None:
    """Serve until SIGINT or SIGTERM; then end runs, children and streams.

    Returns the signal that came before anything was served; to stop later is the service's good end.

    Raises:
        Exception: a bug of ours ended the watch of the machine, and the service with it.
    """
    keep_little_memory()
    log = start_logging(terminal=terminal)
    application = create_app(settings)
    gc.freeze()  # all that was loaded stays: no collection needs to walk it
    return_free_memory()
    config = uvicorn.Config(
        application,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_make_room() + 1,  # uvicorn refuses at it, not beyond it
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
        ssl_certfile=None if tls is None else str(tls[0]),
        ssl_keyfile=None if tls is None else str(tls[1]),
    )
    server = _Server(config)
    with contextlib.suppress(asyncio.CancelledError):
        server.run(sockets=[listening])
    log.flush()
    if application.service.bug is not None:
        raise application.service.bug
    return server.stopped_early_by


def _make_room() -> int:
    """The number of connections there is room for, after raising the process's limit of descriptors."""
    wanted = _MAX_CONNECTIONS + _OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MAX_CONNECTIONS, soft - _OWN_DESCRIPTORS)
    )


class _Server(uvicorn.Server):
    """uvicorn's server, which stops on a signal and then returns normally; further signals change nothing.

    uvicorn itself raises the signal again once it has stopped, which would turn a clean stop into a kill. At
    a second Ctrl-C it leaves the application's end out, and runs and readings with it; ours takes seconds.
    """

    stopped_early_by: int | None = None
    _stopping: asyncio.Future[None] | None = None  # done once it is asked to stop

    async def main_loop(self) -> None:
        """Wait until the server is asked to stop, and set the date of answers anew each second.

        uvicorn's own looks ten times a second whether it is, a third of what an idle service took.
        """
        self._stopping = asyncio.get_running_loop().create_future()
        while not await self.on_tick(0):  # any multiple of ten: those set the date
            await asyncio.wait((self._stopping,), timeout=1.0)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in _STOPPING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if self.should_exit else handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.started and self.stopped_early_by is None:
            self.stopped_early_by = sig
        # The streams first: they are what uvicorn would wait for.
        if isinstance(self.config.app, Gate):
            self.config.app.service.events.close()
        self.should_exit = True
        if self._stopping is not None:
            self._stopping.get_loop().call_soon_threadsafe(self._stop_waiting)

    def _stop_waiting(self) -> None:
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)
