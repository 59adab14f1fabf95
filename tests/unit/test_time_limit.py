import asyncio
import contextlib
import gc
import weakref

import pytest

from gpudiag.time_limit import within


def test_a_cancellation_that_comes_when_the_awaited_is_done_is_not_lost():
    """asyncio.wait_for of Python 3.11 and earlier returns the result, and a loop around it goes on."""

    async def scene() -> bool:
        awaited = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(within(60, awaited))
        await asyncio.sleep(0)
        awaited.set_result("done")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert asyncio.run(scene())


def test_what_takes_too_long_is_cancelled_and_what_fails_says_so():
    async def scene() -> bool:
        awaited = asyncio.get_running_loop().create_future()
        with pytest.raises(asyncio.TimeoutError):
            await within(0.001, awaited)
        with pytest.raises(KeyError):
            await within(60, _fail())
        assert await within(60, asyncio.sleep(0, "slept")) == "slept"
        return awaited.cancelled()

    async def _fail() -> None:
        raise KeyError("x")

    assert asyncio.run(scene())


def test_what_failed_is_freed_with_all_that_its_frames_held():
    """1,000 bodies that were refused stayed in memory until the collector came by: 494 MiB."""

    class Body:
        pass

    async def refuse(bodies: list[weakref.ref]) -> None:
        body = Body()
        bodies.append(weakref.ref(body))
        raise KeyError("too large")

    async def scene() -> list[weakref.ref]:
        bodies: list[weakref.ref] = []
        with contextlib.suppress(KeyError):
            await within(60, refuse(bodies))
        await asyncio.sleep(0)
        return bodies

    gc.disable()
    try:
        (body,) = asyncio.run(scene())
        assert body() is None
    finally:
        gc.enable()
