"""What blocks on the disk, done in a thread of its own that nothing waits for.

A disk that is full, slow or hung is a warning: the event loop goes on, and so does the process's end.
"""

from collections.abc import Callable
from queue import Full, Queue
from threading import Event, Thread

from gpudiag.errors import GpudiagError

_WAITING_JOBS = 50


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
