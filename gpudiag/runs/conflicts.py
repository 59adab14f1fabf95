"""What keeps a run from starting: another run, other people's processes, too many that wait."""

from collections.abc import Iterable

from gpudiag.checks.availability import signs_of_use
from gpudiag.errors import RunConflictError, UsageError
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.reading import Missing

HOST = "host"  # the lock of runs without GPUs


class BusyGpusError(RunConflictError):
    """Others use the GPUs that the run wants; `members` names them."""

    code = "run.gpus_busy"

    def __init__(self, message: str, members: dict[str, object]) -> None:
        """Name who is there."""
        super().__init__(message, hint='"force": true runs all the same, and disturbs them')
        self.members = members


class HeldError(RunConflictError):
    """Another run holds what this one needs; `members` names it."""

    def __init__(self, message: str, held_by: str) -> None:
        """Name the run."""
        super().__init__(message, hint='"queue": true waits for it')
        self.members = {"held_by": held_by}


class FullQueueError(RunConflictError):
    """Too many runs wait already."""

    code = "run.queue_full"
    http_status = 429


def choose_gpus(snapshot: Snapshot | None, names: Iterable[str], *, force: bool) -> tuple[str, ...]:
    """The UUIDs of the GPUs that a run may use: those that it names by UUID or index, or what it may have.

    Without names that is every GPU that answers and that nothing shows to be in use; all that answer where there
    is none, or with `force`.

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
    """Return where nothing shows those GPUs to be in use.

    Raises:
        BusyGpusError: somebody does.
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


def say_lock(lock: tuple[str, ...]) -> str:
    """What a run holds, in words."""
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
