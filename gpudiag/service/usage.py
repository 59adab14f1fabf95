"""Who uses which GPU."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

from gpudiag.model.device import Device, Snapshot
from gpudiag.model.reading import Missing, value_or
from gpudiag.model.service import Processes, ProcessUse, UserUse
from gpudiag.units import GIB

IDLE_SECONDS = 15 * 60.0
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


def list_processes(snapshot: Snapshot, idle_since: Mapping[str, datetime]) -> Processes:
    """Every process on every GPU, most memory first, and each user's total."""
    uses = [use for device in snapshot.devices for use in _uses(device, idle_since, snapshot.taken_at)]
    uses.sort(key=lambda use: -value_or(use.process.memory_used_bytes, 0))
    return Processes(snapshot.taken_at, tuple(uses), tuple(_users(uses)))


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
