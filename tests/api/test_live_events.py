"""The listeners of live events, without a service."""

import asyncio

import pytest

from gpudiag_api import live_events
from gpudiag_api.live_events import LIVE, LiveEvents


def test_a_listener_that_is_cancelled_while_it_is_woken_ends():
    """A service that stops wakes its listeners and cancels their requests, both at once."""

    async def scene() -> int:
        events = LiveEvents()
        listener = events.listen(None)
        takes = 0

        async def take_for_ever() -> None:
            nonlocal takes
            while True:
                takes += 1
                await listener.take()

        task = asyncio.ensure_future(take_for_ever())
        while not takes:
            await asyncio.sleep(0)
        events.publish(LIVE, "{}")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.shield(task)
        return takes

    assert asyncio.run(scene()) == 1


def test_a_listener_is_woken_where_nothing_is_published(monkeypatch):
    """The stream then sends a comment, so that a proxy does not close it."""
    monkeypatch.setattr(live_events, "HEARTBEAT_SECONDS", 0.01)

    async def scene() -> list[bytes]:
        events = LiveEvents()
        listener = events.listen(None)
        events.beat()
        woken = [await listener.take(), await listener.take()]
        events.publish(LIVE, "{}")
        return [*woken, await listener.take()]

    first, second, tick = asyncio.run(scene())
    assert (first, second) == (b"", b"")
    assert tick.startswith(b"id: ")
