"""The folder of gpudiag's state on this machine, and a thread for disk work in the background."""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TypeVar

from gpudiag.errors import GpudiagError
from gpudiag.probe.start import SIMULATED

VARIABLE = "GPUDIAG_STATE_DIR"
SYSTEM_DIRECTORY = Path("/var/lib/gpudiag")

_WAITING_JOBS = 50

Result = TypeVar("Result")


def state_directory(environment: Mapping[str, str] | None = None, user_id: int | None = None) -> Path:
    """$GPUDIAG_STATE_DIR, else /var/lib/gpudiag as root, else the XDG state directory, if it exists or not.

    XDG Base Directory Specification 0.8: $XDG_STATE_HOME, by default ~/.local/state; relative ones are
    ignored.
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


def default_store() -> str:
    """The path of the default store: an SQLite file in the state directory."""
    return str(state_directory() / "history.db")


def own_machine_key() -> str:
    """The key of this machine's stored state: its host name, or its own name if it is simulated."""
    simulated = os.environ.get(SIMULATED)
    return f"simulated {simulated}" if simulated else os.uname().nodename


def await_disk(seconds: float, job: Callable[[], Result]) -> Result:
    """What the job gives, in a thread left alone if the disk hangs. Raises OSError: failed, late."""
    answers: Queue[Result | OSError] = Queue(1)

    def work() -> None:
        try:
            answers.put(job())
        except OSError as error:
            answers.put(error)

    Thread(target=work, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError(errno.ETIMEDOUT, "the disk does not answer") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


class DiskThread:
    """One thread that does jobs in order; a failed one sets the warning, and the next success clears it."""

    def __init__(self, failure: str, warn: Callable[[str], None]) -> None:
        """Begin a warning with `failure`, such as `readings are not written`."""
        self._failure = failure
        self._warn = warn
        self._jobs: Queue[Callable[[], None] | Event] = Queue(_WAITING_JOBS)
        Thread(target=self._live, daemon=True, name=failure).start()

    def do(self, job: Callable[[], None] | Event) -> None:
        """Queue the job, or an event to set; where the queue is full, it is dropped with a warning."""
        try:
            self._jobs.put_nowait(job)
        except Full:
            self._warn(f"{self._failure}: the disk does not answer")

    def wait(self, seconds: float) -> bool:
        """Whether all jobs queued so far are done within `seconds`."""
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
