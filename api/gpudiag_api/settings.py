"""How one service is set up: where it listens, who may do what, where it remembers."""

import ipaddress
import socket
from dataclasses import dataclass, field
from pathlib import Path

from gpudiag_api.tokens import Tokens

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Settings:
    """One service's settings; `state_folder` None remembers nothing beyond the process."""

    host: str = "127.0.0.1"
    port: int = 8765
    root_path: str = ""  # without a slash at its end
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
    )  # of runs, as far as the command line has them

    @property
    def on_loopback(self) -> bool:
        """Whether nobody but this machine reaches the service."""
        return is_loopback(self.host)

    @property
    def reading_needs_token(self) -> bool:
        """Whether a caller must show a token to read."""
        return not self.on_loopback

    def host_names(self) -> frozenset[str]:
        """What the Host header may name, in lower case: everything else is another site's page."""
        names = {*_LOOPBACK_NAMES, self.host.lower(), *(name.lower() for name in self.allowed_hosts)}
        if not self.on_loopback:
            names |= _own_names()
        return frozenset(names)

    def url(self, path: str = "/") -> str:
        """An address that works on this machine."""
        return f"http{'s' if self.tls else ''}://{self.url_host()}:{self.port}{self.root_path}{path}"

    def url_host(self) -> str:
        """The address by which this machine reaches the service, as URLs have it."""
        host = self.host if self.host not in ("0.0.0.0", "::") else "127.0.0.1"  # noqa: S104 - compared
        return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether that address or name can be reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _own_names() -> set[str]:
    """This machine's names and addresses, in lower case."""
    names = {socket.gethostname().lower(), socket.getfqdn().lower()}
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return names
    return names | {str(address[4][0]).partition("%")[0].lower() for address in found}
