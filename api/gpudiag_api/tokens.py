"""Tokens and the roles that they give; sessions of browsers that have shown one."""

import hashlib
import hmac
import secrets
import stat
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from gpudiag.errors import UsageError

READ, ACT = "read", "act"
ROLES = (READ, ACT)
MIN_TOKEN_CHARACTERS = 16
_MAX_TOKENS = 100
_MAX_TOKEN_CHARACTERS = 512
_HINT = "one `read:TOKEN` or `act:TOKEN` a line, of at least 16 characters: openssl rand -hex 24"

SESSION_SECONDS = 12 * 3600.0
_MAX_SESSIONS = 1000  # per role: readers must not push out sessions that may act
MAX_GUESSES = 20
GUESS_SECONDS = 60.0
_MAX_ADDRESSES = 1000


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    """Each token with its role; never shown by `repr`, never logged."""

    known: tuple[tuple[str, str], ...] = ()  # (role, token)
    made: bool = False  # for this start of the service: may be shown, one of a file never is

    def role_of(self, token: str) -> str | None:
        """The role that a token gives, or None; takes equally long for wrong and right ones."""
        given = token.encode("utf-8", "surrogatepass")
        found = None
        for role, known in self.known:
            if hmac.compare_digest(given, known.encode()):
                found = role
        return found

    def __bool__(self) -> bool:
        """Whether there are any tokens."""
        return bool(self.known)


def read_token_file(path: Path) -> Tokens:
    """The tokens in a file of `read:TOKEN` and `act:TOKEN` lines; `#` begins a comment.

    Raises:
        UsageError: it cannot be read, others can read it, a line is neither, or a token is too short.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8-sig")  # an editor may have put a mark before the first line
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "not a text"
        raise UsageError(f"cannot read the tokens in {path}: {words}", hint=_HINT) from error
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise UsageError(
            f"{path} holds tokens, but other users can read or change it (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path}",
        )
    known = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        role, colon, token = stripped.partition(":")
        if not colon or role not in ROLES:
            raise UsageError(f"{path}, line {number}: neither read:TOKEN nor act:TOKEN", hint=_HINT)
        if not MIN_TOKEN_CHARACTERS <= len(token) <= _MAX_TOKEN_CHARACTERS or not token.isascii():
            raise UsageError(
                f"{path}, line {number}: the token is too short, too long or no ASCII", hint=_HINT
            )
        if len(token.split()) != 1 or token != token.strip():
            raise UsageError(f"{path}, line {number}: the token holds a space", hint=_HINT)
        known.append((role, token))
    if not known or len(known) > _MAX_TOKENS:
        raise UsageError(f"{path} holds {len(known)} tokens, not 1 to {_MAX_TOKENS}", hint=_HINT)
    return Tokens(tuple(known))


def make_act_token() -> Tokens:
    """One random token that may act."""
    return Tokens(((ACT, secrets.token_urlsafe(32)),), made=True)


class Guesses:
    """Wrong tokens by client address: after MAX_GUESSES in GUESS_SECONDS, no new ones from there are checked.

    A token that was right from there stays right, so no user is locked out by a neighbour behind a proxy.
    """

    def __init__(self) -> None:
        """Start without any."""
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()
        self._right: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def wait_seconds(self, address: str, token: str) -> float:
        """Seconds until a token from that address is checked again; 0 if it may be now."""
        if (address, _digest(token)) in self._right:
            return 0.0
        newest = [at for at in self._wrong.get(address, ()) if monotonic() - at < GUESS_SECONDS]
        return 0.0 if len(newest) < MAX_GUESSES else GUESS_SECONDS - (monotonic() - newest[-MAX_GUESSES])

    def note(self, address: str, token: str, *, right: bool) -> None:
        """Record whether a token from that address was right."""
        if right:
            self._right[address, _digest(token)] = None
            _forget_oldest(self._right)
            return
        wrong = self._wrong.setdefault(address, [])
        wrong[:] = [*wrong[1 - MAX_GUESSES :], monotonic()]
        self._wrong.move_to_end(address)
        _forget_oldest(self._wrong)


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _forget_oldest(known: OrderedDict[Any, Any]) -> None:
    while len(known) > _MAX_ADDRESSES:
        known.popitem(last=False)


class Sessions:
    """Browsers that have shown a token: a random id in a cookie stands for the role, for 12 hours."""

    def __init__(self) -> None:
        """Start with none; they end with the service."""
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def open(self, role: str) -> str:
        """The id of a new session with that role; ends the role's oldest session if there are too many."""
        identity = secrets.token_urlsafe(32)
        self._known[identity] = (role, monotonic() + SESSION_SECONDS)
        alike = [known for known, (of, _) in self._known.items() if of == role]
        for oldest in alike[:-_MAX_SESSIONS]:
            del self._known[oldest]
        return identity

    def role_of(self, identity: str) -> str | None:
        """The role of a valid session, or None."""
        role, until = self._known.get(identity, (None, 0.0))
        return role if monotonic() < until else None

    def close(self, identity: str) -> None:
        """End a session."""
        self._known.pop(identity, None)
