"""Where other machines' services are, as a user writes it: addresses, files of these and of tokens."""

import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from gpudiag.errors import UsageError
from gpudiag.reference.service_port import SERVICE_PORT

# A service reads its GPUs once a second for whoever looks: the hub's questions count only where somebody
# looks at the hub.
VIEWERS_HEADER = "Gpudiag-Viewers"

MOST_MACHINES = 200
MAX_TOKEN_CHARACTERS = 512
_MAX_FILE_BYTES = 1 << 20
_HOST = re.compile(r"[\w.:%-]+")  # names, also of other scripts than Latin, and addresses of both kinds
_OF_MPI = ("slots", "max_slots", "max-slots")  # a hostfile of Open MPI is a list of machines, too
_ADDRESS_HINT = f"such as gpu1 (port {SERVICE_PORT}), gpu1:9000 or https://proxy.example/gpu1"
_LINE_HINT = "one machine a line: gpu1 [name=rack3-gpu1] [page=https://proxy.example/gpu1]"
_TOKEN_HINT = "one `HOST TOKEN`, `HOST:PORT TOKEN` or `* TOKEN` a line"  # noqa: S105 - words


@dataclass(frozen=True, slots=True)
class Address:
    """Where one machine's service is; `name` is as the user has written it, or what a file calls it."""

    name: str
    host: str
    port: int
    is_tls: bool = False
    path: str = ""  # in front of /api, behind a proxy; without a slash at its end
    page: str = ""  # what a browser opens, where that is another address
    token: str = field(default="", repr=False)

    @property
    def key(self) -> tuple[str, int, str]:
        """What distinguishes it from others."""
        return self.host, self.port, self.path

    @property
    def host_header(self) -> str:
        """The host as a request names it."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == (443 if self.is_tls else 80) else f"{shown}:{self.port}"

    @property
    def url(self) -> str:
        """The address of its page."""
        return self.page or f"http{'s' if self.is_tls else ''}://{self.host_header}{self.path}/"


def parse_address(text: str) -> Address:
    """The address of `gpu1`, `gpu1:9000`, `[2001:db8::7]`, `https://proxy/gpus`. Raises UsageError: none."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is no address of a service", hint=_ADDRESS_HINT) from error
    if parts.username is not None:
        raise UsageError(
            f"the address of {host} holds a user or a password",
            hint="a token belongs in a file that only you can read: --hub-tokens FILE",
        )
    odd = any(not mark.isprintable() or mark in " \\" for mark in text)
    if (
        not _HOST.fullmatch(host)
        or port == 0
        or odd
        or parts.scheme not in ("http", "https")
        or parts.query
        or parts.fragment
    ):
        raise UsageError(f"{text!r} is no address of a service", hint=_ADDRESS_HINT)
    is_tls = parts.scheme == "https"
    standard = SERVICE_PORT if "://" not in text else 443 if is_tls else 80
    return Address(text, host, port or standard, is_tls, parts.path.rstrip("/"))


def parse_addresses(texts: Sequence[str]) -> tuple[Address, ...]:
    """The addresses that the texts name, each once.

    Raises:
        UsageError: one is no address, or there are none, or too many.
    """
    return each_once(parse_address(text.strip()) for text in texts if text.strip())


def read_machine_file(path: Path) -> tuple[Address, ...]:
    """The machines that a file lists, one a line; `#` begins a comment.

    Raises:
        UsageError: it cannot be read, a line is wrong, or it lists none or too many.
    """
    found = []
    for number, line in enumerate(_read_text(path, _LINE_HINT).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            address = parse_address(words[0])
            for word in words[1:]:
                address = _with_extra(address, word)
        except UsageError as error:
            raise UsageError(f"{path}, line {number}: {error.message}", hint=error.hint) from error
        found.append(address)
    if not found:
        raise UsageError(f"{path} lists no machine", hint=_LINE_HINT)
    return each_once(found)


def _with_extra(address: Address, word: str) -> Address:
    name, _, value = word.partition("=")
    if name == "name" and value:
        return replace(address, name=value)
    if name == "page" and value.startswith(("http://", "https://")):
        return replace(address, page=value)
    if name in _OF_MPI:
        return address
    raise UsageError(f"{word!r} is neither name=NAME nor page=URL", hint=_LINE_HINT)


def each_once(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """The addresses, each once. Raises UsageError: there are none, or too many."""
    found = tuple({address.key: address for address in addresses}.values())
    if not found:
        raise UsageError("no machine is named", hint=_ADDRESS_HINT)
    if len(found) > MOST_MACHINES:
        raise UsageError(
            f"{len(found)} machines are more than one view shows", hint=f"name at most {MOST_MACHINES}"
        )
    return found


@dataclass(frozen=True, slots=True, repr=False)
class MachineTokens:
    """The token of each machine, by its host, or its host and port; `*` stands for all others."""

    known: tuple[tuple[str, str], ...] = ()

    def of(self, address: Address) -> str:
        """The token for that machine; empty where it has none."""
        by_place = dict(self.known)
        exact = by_place.get(f"{address.host}:{address.port}".lower())
        return exact or by_place.get(address.host.lower()) or by_place.get("*", "")


def read_machine_tokens(path: Path) -> MachineTokens:
    """The tokens in a file of `HOST TOKEN` lines; `#` begins a comment.

    Raises:
        UsageError: it cannot be read, others can read it, or a line is wrong.
    """
    text = _read_text(path, _TOKEN_HINT)
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise UsageError(
            f"{path} holds tokens, but other users can read or change it (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path}",
        )
    known = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not words[1].isascii() or len(words[1]) > MAX_TOKEN_CHARACTERS:
            raise UsageError(f"{path}, line {number}: not `HOST TOKEN`", hint=_TOKEN_HINT)
        known.append((words[0].strip("[]").lower(), words[1]))
    if not known:
        raise UsageError(f"{path} holds no token", hint=_TOKEN_HINT)
    return MachineTokens(tuple(known))


def _read_text(path: Path, hint: str) -> str:
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_FILE_BYTES + 1)
        text = body.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "not a text"
        raise UsageError(f"cannot read {path}: {words}", hint=hint) from error
    if len(body) > _MAX_FILE_BYTES:
        raise UsageError(f"{path} is larger than 1 MiB", hint=hint)
    return text
