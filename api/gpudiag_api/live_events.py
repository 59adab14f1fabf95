"""Live events for all listeners: encoded once, kept for a while, delivered to each at its own pace."""

import asyncio
import json
import secrets
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

LIVE = "live"
MACHINES = "machines"  # of a hub
_WHOLE = (LIVE, MACHINES)  # each has all that there is: an older one is worth nothing beside it
KEPT_EVENTS = 120  # two minutes of ticks
_MAX_WAITING = 64  # per listener; beyond that it loses the oldest

HEARTBEAT_SECONDS = 15.0
_HEARTBEAT = b": still here\n\n"
_RETRY = b"retry: 2000\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # else nginx would buffer events
]


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its number in this service's life, its name, and its bytes on the stream."""

    number: int
    name: str
    frame: bytes

    @property
    def data(self) -> str:
        """Its JSON, from the bytes: of most events nobody asks for it, and a tick of 8 GPUs is 12 kB."""
        return self.frame.partition(b"\ndata: ")[2][:-2].decode()


class Listener:
    """One listener, with the events that it has not taken yet."""

    def __init__(self) -> None:
        """Wait for the first event."""
        self._waiting: deque[Event] = deque()
        self._wake: asyncio.Future[None] | None = None

    def give(self, event: Event) -> None:
        """Queue one more event; of ticks only the newest stays queued, of all events at most 64."""
        if event.name in _WHOLE:
            for older in self._waiting:
                if older.name == event.name:
                    self._waiting.remove(older)
                    break
        if len(self._waiting) >= _MAX_WAITING:
            self._waiting.popleft()
        self._waiting.append(event)
        self.wake()

    def fill(self, events: list[Event]) -> None:
        """Queue the events that were missed, ticks included."""
        self._waiting.extend(events)
        self.wake()

    def wake(self) -> None:
        """Let `take` return, with events or without."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def take(self) -> bytes:
        """The queued frames; empty if `wake` was called without any."""
        if not self._waiting:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        frames = b"".join(event.frame for event in self._waiting)
        self._waiting.clear()
        return frames


class LiveEvents:
    """All events of one service, and their listeners."""

    def __init__(self) -> None:
        """Start with ids of its own: those of an earlier service mean nothing here."""
        self.instance = secrets.token_hex(4)
        self.listeners: set[Listener] = set()
        self.newest_live: Event | None = None
        self.closed = False
        self._published_at = monotonic()
        self._beat: asyncio.TimerHandle | None = None
        self._number = 0
        self._kept: deque[Event] = deque(maxlen=KEPT_EVENTS)

    def publish(self, name: str, data: str) -> Event:
        """A new event, given to all listeners."""
        self._number += 1
        self._published_at = monotonic()
        frame = f"id: {self.instance}-{self._number}\nevent: {name}\ndata: {data}\n\n".encode()
        event = Event(self._number, name, frame)
        self._kept.append(event)
        if name in _WHOLE:
            self.newest_live = event
        for listener in self.listeners:
            listener.give(event)
        return event

    def listen(self, last_id: str | None) -> Listener:
        """A listener that gets what came after `last_id`, or the newest tick at once; `leave` ends it."""
        listener = Listener()
        missed, _ = self.since(last_id)
        listener.fill(missed)
        self.listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener."""
        self.listeners.discard(listener)

    def close(self) -> None:
        """Wake all listeners, so that their streams end."""
        self.closed = True
        self._wake_all()

    def beat(self) -> None:
        """Wake all listeners whenever nothing was published for 15 s, as long as there are any.

        Call it for each.
        """
        if self._beat is None:
            self._beat_again()

    def _beat_again(self) -> None:
        silent_seconds = monotonic() - self._published_at
        if silent_seconds >= HEARTBEAT_SECONDS:
            self._wake_all()
            self._published_at, silent_seconds = monotonic(), 0.0
        left_seconds = HEARTBEAT_SECONDS - silent_seconds
        loop = asyncio.get_running_loop()
        self._beat = loop.call_later(left_seconds, self._beat_again) if self.listeners else None

    def _wake_all(self) -> None:
        for listener in self.listeners:
            listener.wake()

    def since(self, last_id: str | None) -> tuple[list[Event], bool]:
        """The events after that id, and whether some are lost; without a valid id, the newest tick."""
        number = self._number_of(last_id)
        newest = [self.newest_live] if self.newest_live is not None else []
        if number is None:
            return newest, last_id is not None
        kept = [event for event in self._kept if event.number > number]
        gap = bool(self._kept) and self._kept[0].number > number + 1
        return kept, gap

    def poll(self, last_id: str | None) -> dict[str, Any]:
        """The document `gpudiag.poll/1`: the events after that id, of ticks only the newest."""
        events, gap = self.since(last_id)
        newest = self.newest_live
        kept = [event for event in events if event.name not in _WHOLE or event is newest]
        return {
            "schema": "gpudiag.poll/1",
            "last_id": f"{self.instance}-{self._number}",
            "gap": gap,
            "events": [
                {"id": f"{self.instance}-{event.number}", "event": event.name, "data": json.loads(event.data)}
                for event in kept
            ],
        }

    def _number_of(self, last_id: str | None) -> int | None:
        instance, _, number = (last_id or "").partition("-")
        if instance != self.instance or not (number.isascii() and number.isdigit()) or len(number) > 15:
            return None
        return min(int(number), self._number)


def stream_events(events: LiveEvents, last_id: str | None) -> Response:
    """A response that streams events until the client leaves or the service stops."""
    return _Stream(events, last_id)


class _Stream(Response):
    """One listener's response."""

    def __init__(self, events: LiveEvents, last_id: str | None) -> None:
        super().__init__()
        self._events = events
        self._last_id = last_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        events = self._events
        listener = events.listen(self._last_id)
        events.beat()
        left = asyncio.create_task(_wait_for_leaving(receive))
        left.add_done_callback(lambda _: listener.wake())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await send({"type": "http.response.body", "body": _RETRY, "more_body": True})
            while not left.done() and not events.closed:
                frames = await listener.take() or _HEARTBEAT
                await send({"type": "http.response.body", "body": frames, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            events.leave(listener)
            left.cancel()


async def _wait_for_leaving(receive: Receive) -> None:
    message: Any = None
    while message is None or message["type"] != "http.disconnect":
        message = await receive()
