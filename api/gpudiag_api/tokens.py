"""Tokens and the roles that they give; sessions of browsers that have shown one."""

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from gpudiag.errors import UsageError

READ, ACT = "read", "act"
ROLES = (READ, ACT)
MIN_TOKEN_CHARACTERS = 16
_MAX_TOKENS = 100
_MAX_TOKEN_CHARACTERS = 512
_HINT = "one `read:TOKEN` or `act:TOKEN` a line, of at least 16 characters: openssl rand -hex 24"

SESSION_SECONDS = 12 * 3600.0
_MAX_SESSIONS = 1000


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    """Each token with its role; never shown by `repr`, never logged."""

    known: tuple[tuple[str, str], ...] = ()  # (role, token)
    made: bool = False  # for this one start of the service: it may be shown, one of a file never is

    def role_of(self, token: str) -> str | None:
        """The role that a token gives, or None; takes as long for a wrong one as for a right one."""
        given = token.encode("utf-8", "surrogateescape")
        found = None
        for role, known in self.known:
            if hmac.compare_digest(given, known.encode()):
                found = role
        return found

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.known)


def read_token_file(path: Path) -> Tokens:
    """The tokens in a file of `read:TOKEN` and `act:TOKEN` lines; `#` begins a remark.

    Raises:
        UsageError: it cannot be read, a line is none of these, or a token is too short.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "not a text"
        raise UsageError(f"cannot read the tokens in {path}: {words}", hint=_HINT) from error
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
        known.append((role, token))
    if not known or len(known) > _MAX_TOKENS:
        raise UsageError(f"{path} holds {len(known)} tokens, not 1 to {_MAX_TOKENS}", hint=_HINT)
    return Tokens(tuple(known))


def make_act_token() -> Tokens:
    """One random token that may act."""
    return Tokens(((ACT, secrets.token_urlsafe(32)),), made=True)


class Sessions:
    """Browsers that have shown a token: a random id in a cookie stands for the role, for 12 hours."""

    def __init__(self) -> None:
        """Start with none; they end with the service."""
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def open(self, role: str) -> str:
        """A new session with that role; the oldest goes where there are too many."""
        identity = secrets.token_urlsafe(32)
        self._known[identity] = (role, monotonic() + SESSION_SECONDS)
        while len(self._known) > _MAX_SESSIONS:
            self._known.popitem(last=False)
        return identity

    def role_of(self, identity: str) -> str | None:
        """The role of a session that goes on, or None."""
        role, until = self._known.get(identity, (None, 0.0))
        return role if monotonic() < until else None

    def close(self, identity: str) -> None:
        """End a session."""
        self._known.pop(identity, None)
