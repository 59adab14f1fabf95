"""A limit of time for what is awaited."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def within(seconds: float, awaited: Awaitable[_T]) -> _T:
    """What comes of it within that time.

    It is as asyncio.wait_for, which before Python 3.12 can lose a cancellation. It loses one that comes when
    the awaited is done already: a loop around it then goes on for ever, and a service cannot stop.

    Raises:
        asyncio.TimeoutError: nothing came; it is cancelled.
    """
    task = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()  # nothing where it is done
        # Else an exception of the task would hold the task by this frame, and so itself with all that its
        # frames have.
        del task
