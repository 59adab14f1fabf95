"""Waiting for descriptors, however many there are: select(2) fails from number 1024 on, and a big job has more."""

import select
from collections.abc import Iterable


def wait_readable(descriptors: Iterable[int], seconds: float) -> None:
    """Return once one of them can be read, or its other end is gone; at the latest after `seconds`."""
    _wait(descriptors, select.POLLIN, seconds)


def wait_writable(descriptor: int, seconds: float) -> None:
    """Return once it can be written; at the latest after `seconds`."""
    _wait((descriptor,), select.POLLOUT, seconds)


def _wait(descriptors: Iterable[int], event: int, seconds: float) -> None:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, event)
    poll.poll(max(0.0, seconds) * 1000)
