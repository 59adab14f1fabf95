"""Stores the runs of a service, in the store and in files, by a thread that nothing waits for."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

from gpudiag.model.device import Snapshot
from gpudiag.model.run import Run
from gpudiag.ranks.process import read_process
from gpudiag.store.history import machine_key
from gpudiag.store.service_runs import RunRecords
from gpudiag.store.state_folder import DiskThread

_MAX_BYTES = 32 << 20

_SECONDS = 3.0  # for an answer of the disk, or the machine's first picture
_AGAIN_SECONDS = 5.0  # between two tries to write what a full disk has refused


def read_file(path: Path) -> bytes | None:
    """The file's contents; None if it does not exist, or is too large to be a document."""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= _MAX_BYTES:
            return path.read_bytes()
    return None


def write_log(folder: Path, log: bytes) -> None:
    """Write the end of what a run printed.

    Raises:
        OSError: the disk does not take it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").write_bytes(log)


def own_identity() -> str:
    """This process's identity, unique across pid reuse and reboots."""
    return _identity(os.getpid())


def _identity(pid: int) -> str:
    """A process's identity: its host's boot, its pid, and its start time."""
    process = read_process(pid)
    started = 0 if process is None else process.start_ticks
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{pid}:{started}"


def is_service_alive(service: str) -> bool:
    """Whether that process, as `_identity` names it, still runs."""
    _, _, rest = service.partition(":")
    pid = rest.partition(":")[0]
    return pid.isdigit() and _identity(int(pid)) == service


class RunMemory:
    """What is kept of runs beyond the process; without `records` only files are."""

    def __init__(
        self, folder: Path, records: RunRecords | None, snapshot: Callable[[], Snapshot | None]
    ) -> None:
        """Keep files in `folder`; `snapshot` names the machine."""
        self.warning = ""
        self.loaded: list[tuple[Run, str]] | None = None  # by the disk's thread, until it is taken in
        self._folder = folder
        self._records = records
        self._snapshot = snapshot
        self._disk = DiskThread("runs are not remembered", self._warn)
        self._unwritten: dict[tuple[str, str], Callable[[], None]] = {}  # the newest of each run
        self._tried_at = monotonic()

    def folder_of(self, run: Run) -> Path:
        """Where the run's files are."""
        return self._folder / run.id

    def load(self) -> None:
        """Start reading the runs of earlier services; `loaded` has them later."""
        if self._records is not None:
            self._disk.do(self._load)

    def save(self, run: Run) -> None:
        """Have the disk's thread write the run as it is now."""
        records = self._records
        if records is not None:
            machine, service = self._machine(), own_identity()
            self._write(("run", run.id), lambda: records.save(machine, service, run))

    def save_log(self, run: Run, log: bytes) -> None:
        """Have the end of what the run printed written."""
        folder = self.folder_of(run)
        self._write(("log", run.id), lambda: write_log(folder, log))

    def keep_house(self) -> None:
        """Retry what could not be written; call this about every second."""
        if self._unwritten and monotonic() - self._tried_at > _AGAIN_SECONDS:
            self._try_to_write()

    def forget(self, run: Run) -> None:
        """Have the run's files removed."""
        folder = self.folder_of(run)
        self._unwritten.pop(("log", run.id), None)
        self._disk.do(lambda: shutil.rmtree(folder, ignore_errors=True))

    async def read(self, run: Run, name: str) -> bytes | None:
        """One of the run's files, read in a thread: the disk may be slow."""
        return await asyncio.wait_for(asyncio.to_thread(read_file, self.folder_of(run) / name), _SECONDS)

    def finish(self) -> None:
        """Wait until all is written, but no longer than a working disk takes."""
        self._disk.wait(_SECONDS)

    def _write(self, what: tuple[str, str], job: Callable[[], None]) -> None:
        self._unwritten[what] = job
        self._try_to_write()

    def _try_to_write(self) -> None:
        self._tried_at = monotonic()
        self._disk.do(self._write_all)

    def _write_all(self) -> None:
        """In the disk's thread: a write that fails is kept for a retry, with those after it."""
        for what, job in list(self._unwritten.items()):
            job()
            if self._unwritten.get(what) is job:
                del self._unwritten[what]

    def _machine(self) -> str:
        snapshot = self._snapshot()
        return os.uname().nodename if snapshot is None else machine_key(snapshot)

    def _load(self) -> None:
        """In the disk's thread: the first picture says whether the machine is a simulated one."""
        until = monotonic() + _SECONDS
        while self._snapshot() is None and monotonic() < until:
            sleep(0.05)
        if self._records is not None:
            self.loaded = [*self._records.load(self._machine())]

    def _warn(self, words: str) -> None:
        self.warning = words
