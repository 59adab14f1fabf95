"""Who uses which GPU."""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from gpudiag.model.device import Device, Snapshot
from gpudiag.model.reading import Missing, value_or
from gpudiag.model.service import Processes, ProcessUse, UserUse
from gpudiag.units import GIB

IDLE_SECONDS = 15 * 60.0
_STEP_SECONDS, _POINTS = 10.0, 60  # of what is remembered of each process: ten minutes
_Place = tuple[str, int]  # the GPU's UUID and the pid
_Share = tuple[int | None, int | None]  # bytes, and per cent of the SMs
IDLE_HOLDER_BYTES = GIB  # a bare CUDA context takes some hundred MiB, and does not reserve the GPU


class IdleClock:
    """Since when each GPU has been idle without a break, by UUID."""

    def __init__(self) -> None:
        """Start without any GPU."""
        self.idle_since: dict[str, datetime] = {}

    def note(self, device: Device, at: datetime) -> None:
        """Record one reading; a GPU that does not answer is not known to be idle."""
        uuid, busy = device.id.uuid, device.utilization_percent
        if isinstance(uuid, Missing):
            return
        if isinstance(busy, Missing) or busy > 0:
            self.idle_since.pop(uuid, None)
        else:
            self.idle_since.setdefault(uuid, at)


class RecentShares:
    """What each process had of each GPU in the last ten minutes; kept in memory alone."""

    def __init__(self) -> None:
        """Start without any."""
        self._points: deque[tuple[float, dict[_Place, _Share]]] = deque(maxlen=_POINTS)

    def note(self, snapshot: Snapshot, at: datetime) -> None:
        """Record who has what now, once in ten seconds."""
        now = at.timestamp()
        if self._points and 0 <= now - self._points[-1][0] < _STEP_SECONDS:
            return
        shares = {
            (str(device.id.uuid), process.pid): (
                value_or(process.memory_used_bytes, None),
                value_or(process.sm_utilization_percent, None),
            )
            for device in snapshot.devices
            for process in value_or(device.processes, ())
        }
        self._points.append((now, shares))

    def times(self) -> tuple[float, ...]:
        """When they were recorded, in Unix seconds."""
        return tuple(at for at, _ in self._points)

    def of(self, uuid: str, pid: int) -> tuple[_Share, ...]:
        """Memory and share of the SMs of that process, at each of the times."""
        return tuple(shares.get((uuid, pid), (None, None)) for _, shares in self._points)


def list_processes(
    snapshot: Snapshot, idle_since: Mapping[str, datetime], recent: RecentShares | None = None
) -> Processes:
    """Every process on every GPU, most memory first, and each user's total; with what they had recently."""
    uses = [use for device in snapshot.devices for use in _uses(device, idle_since, snapshot.taken_at)]
    uses.sort(key=lambda use: -value_or(use.process.memory_used_bytes, 0))
    users = tuple(_users(uses))
    if recent is None:
        return Processes(snapshot.taken_at, tuple(uses), users)
    with_recent = tuple(_with_recent(use, recent) for use in uses)
    return Processes(snapshot.taken_at, with_recent, users, recent.times())


def _with_recent(use: ProcessUse, recent: RecentShares) -> ProcessUse:
    shares = recent.of(str(use.uuid), use.process.pid)
    return replace(
        use,
        recent_memory_bytes=tuple(memory for memory, _ in shares),
        recent_sm_percent=tuple(percent for _, percent in shares),
    )


def _uses(device: Device, idle_since: Mapping[str, datetime], now: datetime) -> list[ProcessUse]:
    processes = device.processes
    if isinstance(processes, Missing):
        return []
    uuid = device.id.uuid
    since = None if isinstance(uuid, Missing) else idle_since.get(uuid)
    long_idle = since is not None and (now - since).total_seconds() >= IDLE_SECONDS
    return [
        ProcessUse(
            uuid,
            device.id.nvml_index,
            process,
            since,
            long_idle and value_or(process.memory_used_bytes, 0) > IDLE_HOLDER_BYTES,
        )
        for process in processes
    ]


def _users(uses: list[ProcessUse]) -> list[UserUse]:
    by_user: dict[str, list[ProcessUse]] = defaultdict(list)
    for use in uses:
        user = use.process.user
        by_user["-" if isinstance(user, Missing) else user].append(use)
    users = [
        UserUse(
            user,
            sum(value_or(use.process.memory_used_bytes, 0) for use in theirs),
            len({str(use.uuid) for use in theirs}),
            len({use.process.pid for use in theirs}),
        )
        for user, theirs in by_user.items()
    ]
    return sorted(users, key=lambda user: -user.memory_used_bytes)
