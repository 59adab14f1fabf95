"""The settings of one service: where it listens, who may do what; its state folder, locked while it runs."""

import errno
import fcntl
import ipaddress
import os
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.errors import UsageError
from gpudiag.probe.start import SIMULATED
from gpudiag.reference.service_port import SERVICE_PORT
from gpudiag_api.tokens import Tokens

if TYPE_CHECKING:
    from gpudiag.fleet.discovery import Sources

# --- settings

COOKIE = "gpudiag_session"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Settings:
    """One service's settings; with `state_folder` None, nothing is kept beyond the process."""

    host: str = "127.0.0.1"
    port: int = SERVICE_PORT
    root_path: str = ""  # without a trailing slash
    allowed_hosts: tuple[str, ...] = ()  # names of a reverse proxy
    tokens: Tokens = field(default_factory=Tokens)
    allow_actions: bool = False
    polls: bool = True
    kubelet_socket: str | None = None  # where to ask which pods use the GPUs
    watches_jobs: bool = False
    state_folder: Path | None = None
    state_problem: str = ""  # why that folder cannot be written, as far as the start has shown
    store: str | None = None
    tls: bool = False
    max_streams: int = 1000
    # Of runs, as far as the command line has them.
    kinds: tuple[str, ...] = (
        "preflight",
        "nccl-test",
        "bandwidth",
        "train",
        "hang",
    )
    interpreters: Mapping[str, str] = field(default_factory=dict)  # that runs may name, and their paths
    hub: "Sources | None" = None  # the machines of a hub, which has no GPUs of its own
    hub_tls: ssl.SSLContext | None = None  # by which their certificates are verified

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)

    @property
    def reading_needs_token(self) -> bool:
        """Whether a caller must show a token to read."""
        return not self.on_loopback

    @property
    def cookie(self) -> str:
        """The session cookie's name; it has the port, as browsers keep cookies by host alone."""
        return f"{COOKIE}_{self.port}"

    def host_names(self) -> frozenset[str]:
        """The names that the Host header may have, in lower case; any other is another site's page."""
        names = {*_LOOPBACK_NAMES, self.host.lower(), *(name.lower() for name in self.allowed_hosts)}
        if not self.on_loopback:
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return frozenset(names)

    def url(self, path: str = "/") -> str:
        """A URL that works on this machine."""
        return self.url_of("127.0.0.1" if self.on_every_address else self.host, path)

    def url_of(self, host: str, path: str = "/") -> str:
        """The service's URL under that host name or address."""
        return f"http{'s' if self.tls else ''}://{url_host(host)}:{self.port}{self.root_path}{path}"

    @property
    def on_every_address(self) -> bool:
        """Whether the service listens on all of this machine's addresses."""
        return self.host in ("0.0.0.0", "::")  # noqa: S104 - compared


def is_loopback(host: str) -> bool:
    """Whether that address or name can be reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether that is a numeric address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def url_host(host: str) -> str:
    """A host as URLs have it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


# --- the state folder

_FOLDER, _SIMULATED_FOLDER = "service", "service-simulated"
_LOCK = "lock"
_MAX_NAME_CHARACTERS = 80
_WAIT_SECONDS = 3.0  # enough for a disk that works; a hung one is not waited for


def service_folder(state: Path) -> Path:
    """The state folder of this machine's service; simulated machines have their own."""
    simulated = os.environ.get(SIMULATED)
    if not simulated:
        return state / _FOLDER
    return state / _SIMULATED_FOLDER / re.sub(r"[^\w.+-]", "-", simulated)[:_MAX_NAME_CHARACTERS]


# A folder that was named and can never be one is a mistake; a disk that is full or broken is not.
_MISTAKES = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST)


@dataclass
class _Held:
    """The outcome of locking, set by the thread that asks for the lock."""

    descriptor: int | None = None
    holder: str | None = None
    error: OSError | None = None
    mistake: bool = False
    has_answer: bool = False


def hold_folder(folder: Path, address: str, named: Path | None = None) -> str:
    """Lock the folder for this process's life; why it cannot be written, in one sentence, or nothing.

    The service goes on without its memory. `named` is the folder above it that the user has named.

    Raises:
        UsageError: another service holds it, or what the user has named is no folder and cannot become one.
    """
    held = _Held()
    # A thread, because the disk may hang, and then the service goes on without the lock.
    asking = threading.Thread(target=_ask, args=(folder, address, named, held), daemon=True)
    asking.start()
    asking.join(_WAIT_SECONDS)
    if held.holder is not None:
        raise UsageError(
            f"another gpudiag serve stores its data in {folder}: {held.holder}",
            hint="use that one, or give this one its own folder: GPUDIAG_STATE_DIR=DIR gpudiag serve ...",
        )
    if held.error is not None and held.mistake:
        raise UsageError(
            f"the state folder {named} is no folder and cannot be made: {held.error.strerror}",
            hint="name one that can be written: GPUDIAG_STATE_DIR=DIR gpudiag serve ...",
        )
    if held.error is None and held.has_answer:
        return ""
    why = "the disk does not answer" if held.error is None else held.error.strerror or str(held.error)
    return f"readings, runs and GPUs are not remembered: {folder} cannot be written: {why}"


def _ask(folder: Path, address: str, named: Path | None, held: _Held) -> None:
    try:
        if named is not None:
            held.mistake = True
            named.mkdir(parents=True, exist_ok=True)
            held.mistake = False
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        held.mistake = held.mistake and error.errno in _MISTAKES
        held.error = error
        return
    _lock(descriptor, address, held)
    held.has_answer = True


def _lock(descriptor: int, address: str, held: _Held) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 200).decode(errors="replace").strip()
        held.holder = holder or "it has just started"
        os.close(descriptor)
        return
    except OSError:  # a file system without locks
        os.close(descriptor)
        return
    held.descriptor = (
        descriptor  # never closed: the kernel releases the lock when the process ends, however it ends
    )
    try:
        with open(descriptor, "w", closefd=False) as file:
            file.truncate()
            file.write(f"process {os.getpid()}, {address}\n")
    except OSError as error:  # a full disk
        held.error = error
