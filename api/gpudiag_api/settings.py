"""The settings of one service: where it listens, who may do what, where it keeps its state."""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpudiag_api.tokens import Tokens

COOKIE = "gpudiag_session"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Settings:
    """One service's settings; with `state_folder` None, nothing is kept beyond the process."""

    host: str = "127.0.0.1"
    port: int = 8765
    root_path: str = ""  # without a trailing slash
    allowed_hosts: tuple[str, ...] = ()  # names of a reverse proxy
    tokens: Tokens = field(default_factory=Tokens)
    allow_actions: bool = False
    polls: bool = True
    state_folder: Path | None = None
    store: str | None = None
    tls: bool = False
    max_streams: int = 1000
    kinds: tuple[str, ...] = (
        "preflight",
        "nccl-test",
        "bandwidth",
        "train",
        "hang",
    )  # of runs, as far as the command line has them
    interpreters: Mapping[str, str] = field(default_factory=dict)  # that runs may name, and their paths

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
