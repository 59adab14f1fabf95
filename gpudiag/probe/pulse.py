"""A process's pulse: what the kernel counts of its main thread, by two open files of /proc.

No lock of the process's memory is taken: neither holds up the other.
"""

import os
import re
from contextlib import suppress

from gpudiag.model.job_run import Pulse

_SLEEPS = re.compile(rb"^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
_SCHEDSTAT_BYTES, _STATUS_BYTES = 128, 4096


class PulseReader:
    """Reads one process's pulse until `close`."""

    def __init__(self, pid: int) -> None:
        """Open its files. Raises OSError: there is no such process."""
        self.pid = pid
        folder = f"/proc/{pid}/task/{pid}"
        self._schedstat = os.open(f"{folder}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._status = os.open(f"{folder}/status", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._schedstat)
            raise

    def read(self, at_seconds: float) -> Pulse | None:
        """The pulse at that moment; None once the process is gone."""
        try:
            ran, queued, runs = os.pread(self._schedstat, _SCHEDSTAT_BYTES, 0).split()
            found = _SLEEPS.search(os.pread(self._status, _STATUS_BYTES, 0))
        except (OSError, ValueError):
            return None
        if found is None:
            return None
        return Pulse(at_seconds, int(ran) / 1e9, int(queued) / 1e9, int(runs), int(found[1]))

    def close(self) -> None:
        """Close the files."""
        for descriptor in (self._schedstat, self._status):
            with suppress(OSError):
                os.close(descriptor)
