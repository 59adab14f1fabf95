"""Who may use a service, and what its callers share: settings, sessions, tokens, events, newest document."""

import asyncio
import contextlib
import logging
import math
import os
import signal
from abc import ABC, abstractmethod
from datetime import datetime

from starlette.requests import Request

from gpudiag.compat import UTC
from gpudiag.fleet.addresses import VIEWERS_HEADER
from gpudiag.model.service import ServiceHealth
from gpudiag.time_limit import within
from gpudiag_api.live_events import LiveEvents
from gpudiag_api.replies import Cache, Encoded, Problem, encode_body
from gpudiag_api.settings import Settings
from gpudiag_api.tokens import Guesses, Sessions

_log = logging.getLogger("gpudiag.service")


class Access(ABC):
    """What a machine's service and a hub have alike."""

    is_hub = False

    def __init__(self, settings: Settings) -> None:
        """Start with no session and no event."""
        self.settings = settings
        self.started_at = datetime.now(UTC)
        self.events = LiveEvents()
        self.sessions = Sessions()
        self.guesses = Guesses()
        self.cache = Cache()
        self.live: Encoded | None = None  # the newest document of all that there is
        self.findings: str | None = None  # of a machine: the newest, which the tick has only in part
        self.bug: BaseException | None = None  # the exception that ended the service, if one did
        self._first_live = asyncio.Event()

    @abstractmethod
    async def start(self) -> None:
        """Start what gathers."""

    @abstractmethod
    async def stop(self) -> None:
        """End all that was started."""

    @abstractmethod
    def note_look(self) -> None:
        """Somebody looks: what is shown is read more often for a while."""

    def note_request(self, request: Request) -> None:
        """Somebody looks, unless a hub asks that nobody looks at."""
        if request.headers.get(VIEWERS_HEADER) != "0":
            self.note_look()

    @abstractmethod
    def health(self) -> ServiceHealth:
        """Whether there is fresh data, and what is wrong with the service itself."""

    def publish_live(self, name: str, text: str) -> None:
        """Keep the newest document, and give it to all listeners."""
        self.live = encode_body(text.encode())
        self._first_live.set()
        self.events.publish(name, text)

    async def wait_for_live(self, seconds: float) -> None:
        """Wait for the first tick, for at most `seconds`."""
        with contextlib.suppress(asyncio.TimeoutError):
            await within(seconds, self._first_live.wait())

    def role_of_token(self, address: str, token: str) -> str | None:
        """The role that a token from that address gives, or None.

        Raises:
            Problem: too many wrong ones came from there.
        """
        wait_seconds = self.guesses.wait_seconds(address, token)
        if wait_seconds > 0:
            again = str(math.ceil(wait_seconds))
            raise Problem(
                429,
                "access.guesses",
                "too many wrong tokens came from this address",
                f"try again in {again} s",
                {"Retry-After": again},
            )
        role = self.settings.tokens.role_of(token)
        self.guesses.note(address, token, right=role is not None)
        return role

    def end_by_bug(self, task: asyncio.Task[None]) -> None:
        """End the service if a task has failed: without its watch, the page would show old numbers as new."""
        if task.cancelled() or task.exception() is None:
            return
        self.bug = task.exception()
        _log.critical("a bug of gpudiag: the service ends", exc_info=self.bug)
        os.kill(os.getpid(), signal.SIGTERM)
