"""The runs that a service knows, oldest first, what keeps another from starting, and how they are stored."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep

from gpudiag.checks.gpu.availability import signs_of_use
from gpudiag.errors import RunConflictError, RunNotFoundError, StoreError, UsageError
from gpudiag.linux.namespaces import read_boot_id
from gpudiag.linux.proc import find_process
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.option import Plan
from gpudiag.model.reading import Missing
from gpudiag.model.run import ENDED, NumberedEvent, Run, RunState
from gpudiag.model.service import ActiveRun
from gpudiag.service.kinds import RunKind
from gpudiag.service.run_findings import Looked, read_findings
from gpudiag.service.run_process import RunProcess
from gpudiag.store.aside import StoreAside
from gpudiag.store.history import machine_key
from gpudiag.store.state_folder import DiskThread, await_disk
from gpudiag.time_limit import within

# --- kept

_MAX_BYTES = 32 << 20
_ROOM_BYTES = 1 << 20  # a preflight of 16 GPUs writes a third of it

_SECONDS = 3.0  # for an answer of the disk, or the machine's first picture
_FOLDER_SECONDS = 1.0  # for a folder; all requests wait until then
_FORGOTTEN = "runs are not remembered"
_AGAIN_SECONDS = (
    5.0  # between two tries to write what a full disk has refused, and two looks for runs of others
)
_SERVER_SECONDS = 600.0  # between two looks where no file shows whether the store has changed
_STORE_SECONDS = 10.0  # for a document of the store, whose process may have to be started first


def read_file(path: Path) -> bytes | None:
    """The file's contents; None if it does not exist, or is too large to be a document."""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= _MAX_BYTES:
            return path.read_bytes()
    return None


def make_roomy(folder: Path) -> None:
    """Make the folder, on a disk with room for a report: without it the run's result would be lost.

    Raises:
        OSError: the disk does not take it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "room"
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
    finally:
        path.unlink(missing_ok=True)


def write_log(folder: Path, log: bytes) -> None:
    """Write the end of what a run printed. Raises OSError: the disk does not take it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").write_bytes(log)


def own_identity() -> str:
    """This process's identity, unique across pid reuse and reboots."""
    return _identity(os.getpid())


def _identity(pid: int) -> str:
    """A process's identity: its host's boot, its pid, and its start time."""
    process = find_process(pid)
    started = 0 if process is None else process.start_ticks
    boot = ""
    with contextlib.suppress(OSError):
        boot = read_boot_id()
    return f"{boot}:{pid}:{started}"


def is_service_alive(service: str) -> bool:
    """Whether that process, as `_identity` names it, still runs."""
    _, _, rest = service.partition(":")
    pid = rest.partition(":")[0]
    return pid.isdigit() and _identity(int(pid)) == service


class RunMemory:
    """What is kept of runs beyond the process; without a `store` only files are."""

    def __init__(
        self, folder: Path | None, store: StoreAside | None, snapshot: Callable[[], Snapshot | None]
    ) -> None:
        """Keep files in `folder`, or in a temporary one; `snapshot` names the machine."""
        self._warning = ""
        self._folder_problem = ""  # why the newest run's files are for this service's life alone
        self.loaded: list[tuple[Run, str]] | None = None  # by the disk's thread, until it is taken in
        self.looked: deque[Looked] = deque()  # likewise
        self._temporary: Path | None = None
        self._folder = self._make_temporary() if folder is None else folder
        self._store = store
        self._snapshot = snapshot
        self._elsewhere: dict[str, Path] = {}  # the folders of runs whose files the disk does not take
        self._disk = DiskThread(_FORGOTTEN, self._warn)
        self._unwritten: dict[tuple[str, str], Callable[[], None]] = {}  # the newest of each run
        self._tried_at = monotonic()
        self._looked_at = monotonic()
        self._loaded_stamp: object = None  # of the store, as its runs were read last
        self._loaded_at = 0.0

    @property
    def warning(self) -> str:
        """Why runs are not remembered; empty if they are."""
        return self._warning or self._folder_problem

    def folder_of(self, run: Run) -> Path:
        """Where the run's files are."""
        return self._elsewhere.get(run.id, self._folder / run.id)

    def make_folder(self, run: Run) -> Path:
        """The folder for the run's files: for this service's life alone where the disk takes none.

        Raises:
            OSError: no folder can be made anywhere.
        """
        folder = self._folder / run.id
        try:
            await_disk(_FOLDER_SECONDS, lambda: make_roomy(folder))
        except OSError as error:
            self._folder_problem = f"{_FORGOTTEN}: {error.strerror or error}"
            folder = self._elsewhere[run.id] = self._make_temporary() / run.id
            folder.mkdir()
        else:
            self._folder_problem = ""
        return folder

    def has_report(self, run: Run) -> bool:
        """Whether the run has left a document."""
        path = self.folder_of(run) / "report.json"
        with contextlib.suppress(OSError):
            return await_disk(_FOLDER_SECONDS, path.exists)
        return False

    def _make_temporary(self) -> Path:
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="gpudiag-runs-"))
        return self._temporary

    def load(self) -> None:
        """Start reading the runs of earlier services; `loaded` has them later."""
        if self._store is not None:
            self._disk.do(self._load)

    def save(self, run: Run) -> None:
        """Have the disk's thread write the run as it is now."""
        store = self._store
        if store is not None:
            machine, service = self._machine(), own_identity()
            self._write(("run", run.id), lambda: store.save_run(machine, service, run))

    def save_log(self, run: Run, log: bytes) -> None:
        """Have the end of what the run printed written."""
        folder = self.folder_of(run)
        self._write(("log", run.id), lambda: write_log(folder, log))

    def read_findings(self, run: Run) -> None:
        """Have the run's report read for what it found; `looked` has it later."""
        self._disk.do(lambda: self._read_findings(run))

    def _read_findings(self, run: Run) -> None:
        text = read_file(self.folder_of(run) / "report.json")
        looked = None if text is None else read_findings(run, text)
        if looked is not None:
            self.looked.append(looked)

    def keep_house(self) -> None:
        """Retry what could not be written, and read what others stored; call this about every second."""
        if self._unwritten:
            if monotonic() - self._tried_at > _AGAIN_SECONDS:
                self._try_to_write()
        elif self._store is not None and monotonic() - self._looked_at > _AGAIN_SECONDS:
            self._looked_at = monotonic()
            self._disk.do(self._load)

    def forget(self, run: Run) -> None:
        """Have the run's files removed."""
        folder = self.folder_of(run)
        self._elsewhere.pop(run.id, None)
        for kind in ("run", "log"):
            self._unwritten.pop((kind, run.id), None)
        self._disk.do(lambda: shutil.rmtree(folder, ignore_errors=True))

    async def read(self, run: Run, name: str) -> bytes | None:
        """One of the run's files, read in a thread: the disk may be slow.

        Raises:
            StoreError: the disk does not answer.
        """
        path = self.folder_of(run) / name
        try:
            return await within(_SECONDS, asyncio.to_thread(read_file, path))
        except asyncio.TimeoutError as error:
            raise StoreError(f"{path} cannot be read: the disk does not answer") from error

    async def read_report(self, run: Run) -> bytes | None:
        """The run's document: of its folder, or of the store, where a command has left it; None without one.

        Raises:
            StoreError: disk or store do not answer.
        """
        text = await self.read(run, "report.json")
        if text is not None or self._store is None or not run.has_report:
            return text
        try:
            stored = await within(_STORE_SECONDS, asyncio.to_thread(self._store.read_report, run.id))
        except asyncio.TimeoutError as error:
            raise StoreError("the run's document cannot be read: the history gives no answer") from error
        return None if stored is None else stored.encode()

    def finish(self) -> None:
        """Wait until all is written, but no longer than a working disk takes."""
        self._disk.wait(_SECONDS)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

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
        """In the disk's thread; the first picture shows whether the machine is simulated."""
        store = self._store
        if store is None:
            return
        stamp = store.stamp()
        if self._loaded_at and (
            monotonic() - self._loaded_at < _SERVER_SECONDS if stamp is None else stamp == self._loaded_stamp
        ):
            return
        until = monotonic() + _SECONDS
        while self._snapshot() is None and monotonic() < until:
            sleep(0.05)
        self.loaded = store.load_runs(self._machine())
        self._loaded_stamp, self._loaded_at = stamp, monotonic()

    def _warn(self, words: str) -> None:
        self._warning = words


# --- known

HOST = "host"  # the lock of runs without GPUs
LOOK = "look"  # of those that only look at what runs: one at a time, beside all others


@dataclass(slots=True)
class RunEntry:
    """A run with what is needed to execute it; one of an earlier service has neither kind nor plan."""

    run: Run
    kind: RunKind | None = None
    plan: Plan | None = None
    folder: Path | None = None
    process: RunProcess | None = None
    began: float = 0.0
    log: bytes = b""
    events: tuple[NumberedEvent, ...] = ()
    flags: tuple[str, ...] = ()  # of the command, beside those of the plan
    # Once it has been asked to end; FAILED where it passed its deadline.
    ends_as: RunState = RunState.CANCELLED

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended."""
        return self.run.state in ENDED


class RunList:
    """Entries by the run's id, in the order in which they were requested."""

    def __init__(self) -> None:
        """Start empty."""
        self._entries: OrderedDict[str, RunEntry] = OrderedDict()

    def __iter__(self) -> Iterator[RunEntry]:
        """Every entry, oldest first; the list may change during the iteration."""
        return iter(tuple(self._entries.values()))

    def add(self, entry: RunEntry) -> None:
        """Add the newest entry."""
        self._entries[entry.run.id] = entry

    def put_among(self, earlier: Iterable[RunEntry]) -> None:
        """Add entries that others have stored, by when they were requested."""
        entries = {entry.run.id: entry for entry in earlier} | self._entries
        self._entries = OrderedDict(sorted(entries.items(), key=lambda one: one[1].run.requested_at))

    def __contains__(self, identity: str) -> bool:
        """Whether the run of that id is known."""
        return identity in self._entries

    def find(self, identity: str) -> RunEntry:
        """The entry of that run. Raises RunNotFoundError: there is none."""
        if identity not in self._entries:
            raise RunNotFoundError(f"there is no run {identity[:64]!r}", hint="GET /api/v1/runs lists them")
        return self._entries[identity]

    def holder_of(self, lock: tuple[str, ...]) -> RunEntry | None:
        """The oldest queued or running run that needs any of `lock` (GPUs or the host); None if none does."""
        for entry in self._entries.values():
            if not entry.has_ended and set(entry.run.lock) & set(lock):
                return entry
        return None

    def queued(self) -> list[RunEntry]:
        """The queued runs, first come first."""
        return [entry for entry in self._entries.values() if entry.run.state is RunState.QUEUED]

    def whose_turn_it_is(self) -> Iterator[RunEntry]:
        """The queued runs that may start; one that still waits holds its GPUs against later ones."""
        held: set[str] = set()
        for entry in self:
            if entry.has_ended:
                continue
            if entry.run.state is RunState.QUEUED and not held & set(entry.run.lock):
                yield entry
            held |= set(entry.run.lock)

    def active(self) -> tuple[ActiveRun, ...]:
        """The runs that are queued or running, oldest first."""
        return tuple(
            ActiveRun(run.id, run.kind, run.state.value, run.started_at, run.progress)
            for run in (entry.run for entry in self._entries.values() if not entry.has_ended)
        )

    def show(self, entry: RunEntry) -> Run:
        """The run as it is now: its place in the queue, and how much it has printed."""
        if entry.run.state is RunState.QUEUED and entry in (queued := self.queued()):
            return replace(entry.run, queue_position=queued.index(entry) + 1)
        if entry.process is not None:
            return replace(entry.run, log_bytes=entry.process.log_bytes)
        return entry.run

    def forget_beyond(self, most: int) -> list[Run]:
        """Forget the oldest ended runs in excess of `most`; return them."""
        ended = [entry for entry in self._entries.values() if entry.has_ended]
        surplus = [entry.run for entry in ended[: max(0, len(self._entries) - most)]]
        for run in surplus:
            del self._entries[run.id]
        return surplus


class BusyGpusError(RunConflictError):
    """Other processes use the GPUs that the run wants; `members` names them."""

    code = "run.gpus_busy"

    def __init__(self, message: str, members: dict[str, object]) -> None:
        """Name who is there."""
        super().__init__(message, hint='"force": true runs nevertheless, and disturbs them')
        self.members = members


class HeldError(RunConflictError):
    """Another run holds what this one needs; `members` names it."""

    def __init__(self, message: str, held_by: str) -> None:
        """Name the run."""
        super().__init__(message, hint='"queue": true waits for it')
        self.members = {"held_by": held_by}


class FullQueueError(RunConflictError):
    """Too many runs are queued already."""

    code = "run.queue_full"
    http_status = 429


def choose_gpus(snapshot: Snapshot | None, names: Iterable[str], *, force: bool) -> tuple[str, ...]:
    """The UUIDs of the GPUs that a run may use: those that it names by UUID or index, or what it may have.

    Without names that is every GPU that answers and that nothing shows to be in use; all that answer where
    there is none, or with `force`.

    Raises:
        UsageError: there is no such GPU.
    """
    devices = () if snapshot is None else snapshot.devices
    known = {str(device.id.uuid): device for device in devices if not isinstance(device.id.uuid, Missing)}
    by_index = {str(device.id.nvml_index): uuid for uuid, device in known.items()}
    named = []
    for name in names:
        uuid = name if name in known else by_index.get(name)
        if uuid is None:
            raise UsageError(f"there is no GPU {name[:64]!r}", hint="GET /api/v1/devices lists them")
        named.append(uuid)
    if named or snapshot is None:
        return tuple(dict.fromkeys(named))
    usable = tuple(uuid for uuid, device in known.items() if device.responding is True)
    free = tuple(uuid for uuid in usable if not _users_of(snapshot, (uuid,)))
    return usable if force or not free else free


def refuse_busy(snapshot: Snapshot | None, gpus: tuple[str, ...]) -> None:
    """Raise BusyGpusError if anything shows those GPUs to be in use.

    Raises:
        BusyGpusError: they are in use.
    """
    users = () if snapshot is None else _users_of(snapshot, gpus)
    if users:
        first = users[0]
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        who = (
            f"is used by {first['user']}, pid {first['pid']}"
            if first["pid"]
            else f"is in use: {first['command']}"
        )
        message = f"GPU {first['nvml_index']} {who}{more}"
        raise BusyGpusError(message, {"processes": list(users[:20])})


def describe_lock(lock: tuple[str, ...]) -> str:
    """What a run holds, in words."""
    if lock == (LOOK,):
        return "the look at running jobs"
    return "the host" if lock == (HOST,) else f"{len(lock)} of the GPUs"


def _users_of(snapshot: Snapshot, gpus: tuple[str, ...]) -> list[dict[str, object]]:
    """Who computes on those GPUs; one without a pid where only load or memory shows it."""
    return [user for device in snapshot.devices if device.id.uuid in gpus for user in _users_of_gpu(device)]


def _users_of_gpu(device: Device) -> list[dict[str, object]]:
    index = device.id.nvml_index
    gpu = {"uuid": device.id.uuid, "nvml_index": None if isinstance(index, Missing) else index}
    processes = () if isinstance(device.processes, Missing) else device.processes
    users: list[dict[str, object]] = [
        {
            **gpu,
            "pid": process.pid,
            "user": "?" if isinstance(process.user, Missing) else process.user,
            "command": "?" if isinstance(process.command, Missing) else process.command,
        }
        for process in processes
        if process.kind != "graphics"
    ]
    signs = signs_of_use(device)
    if users or not signs or device.responding is not True:
        return users
    return [
        {**gpu, "pid": None, "user": "?", "command": f"{', '.join(signs)}, by no process that is seen here"}
    ]
