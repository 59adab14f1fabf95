"""`--watch`: the same view repeatedly, in place on a terminal, one after the other in a pipe."""

import sys
from collections.abc import Callable
from time import monotonic, sleep
from typing import NoReturn

from gpudiag.cli.streams import steer

# ECMA-48: cursor home, erase to the end of the line, erase to the end of the screen.
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def redraw(interval_seconds: float, draw: Callable[[], str], *, as_json: bool) -> NoReturn:
    """Write what `draw` returns every `interval_seconds`, until Ctrl-C ends it (exit status 130).

    After a view that takes longer than the interval the next comes at once; missed ones are not made up for.
    """
    in_place = sys.stdout.isatty() and not as_json
    if in_place:
        steer(sys.stdout, f"{_HOME}{_CLEAR_REST}")
    while True:
        started = monotonic()
        text = draw()
        if in_place:
            _write_in_place(text)
        else:
            sys.stdout.write(text if as_json else f"{text}\n")
        sys.stdout.flush()
        sleep(max(0.0, interval_seconds - (monotonic() - started)))


def _write_in_place(text: str) -> None:
    steer(sys.stdout, _HOME)
    for line in text.removesuffix("\n").split("\n"):
        sys.stdout.write(line)
        steer(sys.stdout, f"{_CLEAR_LINE}\n")
    steer(sys.stdout, _CLEAR_REST)
