"""From a feed to the end of the view, whatever ends it: the terminal is as it was, every child has ended."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gpudiag.watch.feed import Feed
from gpudiag.watch.glyphs import ASCII, Glyphs
from gpudiag.watch.screen.app import Ended, WatchApp

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def show(feed: Feed, glyphs: Glyphs) -> Ended:
    """How the view ended. Raises Exception: a bug of ours, once the terminal is as it was."""
    with _raw_standard_files(glyphs):
        return asyncio.run(_show(feed, glyphs))


async def _show(feed: Feed, glyphs: Glyphs) -> Ended:
    app = WatchApp(feed, glyphs)
    loop = asyncio.get_running_loop()
    for number in _ENDING:
        loop.add_signal_handler(number, app.exit, Ended(number))
    try:
        ended = await app.run_async()
    finally:
        await app.stop_feed()
        for number in _ENDING:
            loop.remove_signal_handler(number)
    if app.failure is not None:
        raise app.failure
    return ended or Ended()


@contextmanager
def _raw_standard_files(glyphs: Glyphs) -> Iterator[None]:
    """Within the context, Textual writes to the terminal without gpudiag's guard.

    Its sequences are ours, and texts are cleaned before.
    """
    encoding = "ascii" if glyphs is ASCII else "utf-8"
    kept = sys.__stdin__, sys.__stdout__, sys.__stderr__, sys.stdout, sys.stderr
    raw = open(os.dup(1), "w", encoding=encoding, errors="replace", newline="")  # noqa: SIM115
    # Textual draws on standard error, where a terminal may not be.
    sys.__stderr__ = sys.__stdout__ = raw  # type: ignore[misc]
    sys.__stdin__ = open(os.dup(0), encoding="utf-8", errors="replace")  # type: ignore[misc]  # noqa: SIM115
    try:
        yield
    finally:
        opened = sys.__stdin__
        sys.__stdin__, sys.__stdout__, sys.__stderr__, sys.stdout, sys.stderr = kept  # type: ignore[misc]
        raw.close()
        if opened is not None:
            opened.close()
