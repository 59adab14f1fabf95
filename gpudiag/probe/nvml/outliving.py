"""A guarded child that must not be killed half way: it asks to be left alone, and ends by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import sleep
from typing import Any

from gpudiag.probe.guard import OUTLIVES, PR_SET_PDEATHSIG, die_with


class Outliving:
    """Lets a child go on for `at_most_seconds` after its parent ends or gives it up; see `begin`."""

    def __init__(self, emit: Callable[[Any], None], at_most_seconds: int) -> None:
        """Start as a child that dies with its parent."""
        self.begun = False
        self._emit = emit
        self._seconds = at_most_seconds
        self._parent = os.getppid()

    def begin(self) -> None:
        """Outlive the parent from now on. The alarm ends even a process whose threads hang in a library."""
        import ctypes
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(self._seconds)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
        self.begun = True
        self._send(outlives=True)

    def end(self, keep_seconds: float) -> None:
        """Die with the parent again; if it has gone, stay for `keep_seconds` and exit."""
        import signal

        if os.getppid() != self._parent or not self._send(outlives=False):
            sleep(keep_seconds)
            os._exit(0)
        signal.alarm(0)
        self.begun = False
        die_with(self._parent)

    def _send(self, *, outlives: bool) -> bool:
        try:
            self._emit((OUTLIVES, outlives))
        except OSError:  # the parent no longer reads
            return False
        return True
