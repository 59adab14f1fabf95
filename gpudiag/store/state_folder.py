"""Where gpudiag keeps what it remembers on this machine, and work on the disk that nothing waits for."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Full, Queue
from threading import Event, Thread

from gpudiag.errors import GpudiagError
from gpudiag.probe.start import SIMULATED

VARIABLE = "GPUDIAG_STATE_DIR"
SYSTEM_DIRECTORY = Path("/var/lib/gpudiag")

_WAITING_JOBS = 50


def state_directory(environment: Mapping[str, str] | None = None, user_id: int | None = None) -> Path:
    """$GPUDIAG_STATE_DIR, else /var/lib/gpudiag as root, else the XDG state directory; not yet made.

    XDG Base Directory Specification 0.8: $XDG_STATE_HOME, by default ~/.local/state; a path that is not
    absolute is to be ignored.
    """
    environment = os.environ if environment is None else environment
    own = environment.get(VARIABLE, "")
    if own:
        return Path(own)
    if (os.geteuid() if user_id is None else user_id) == 0:
        return SYSTEM_DIRECTORY
    base = Path(environment.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():
        base = Path(environment.get("HOME") or "/nonexistent") / ".local" / "state"
    return base / "gpudiag"


def own_machine_key() -> str:
    """The name under which what is known of this machine is kept; a simulated one has its own."""
    simulated = os.environ.get(SIMULATED)
    return f"simulated {simulated}" if simulated else os.uname().nodename


class DiskThread:
    """One thread that does job after job; what fails is one warning, which the next success takes back."""

    def __init__(self, failure: str, warn: Callable[[str], None]) -> None:
        """Begin a warning with `failure`, such as `readings are not written`."""
        self._failure = failure
        self._warn = warn
        self._jobs: Queue[Callable[[], None] | Event] = Queue(_WAITING_JOBS)
        Thread(target=self._live, daemon=True, name=failure).start()

    def do(self, job: Callable[[], None] | Event) -> None:
        """Have the job done, or the event set, after those before it; where too many wait, it is dropped."""
        try:
            self._jobs.put_nowait(job)
        except Full:
            self._warn(f"{self._failure}: the disk does not answer")

    def wait(self, seconds: float) -> bool:
        """Whether what was asked so far is done within that time."""
        done = Event()
        self.do(done)
        if done.wait(seconds):
            return True
        self._warn(f"{self._failure}: the disk does not answer")
        return False

    def _live(self) -> None:
        while True:
            job = self._jobs.get()
            if isinstance(job, Event):
                job.set()
                continue
            try:
                job()
            except OSError as error:
                self._warn(f"{self._failure}: {error.strerror or error}")
            except GpudiagError as error:
                self._warn(f"{self._failure}: {error.message}")
            else:
                self._warn("")
