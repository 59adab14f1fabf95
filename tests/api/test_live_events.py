"""The listeners of live events, without a service."""

import asyncio

import pytest

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
                await listener.take(60)

        task = asyncio.ensure_future(take_for_ever())
        while not takes:
            await asyncio.sleep(0)
        events.publish(LIVE, "{}")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.shield(task)
        return takes

    assert asyncio.run(scene()) == 1
