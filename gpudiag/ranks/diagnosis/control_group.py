"""What a process's own control groups do to it: freeze it, hold it back by a quota, limit its memory.

Both versions, also at once; a process may be moved, so groups are looked up again and again.
"""

from collections.abc import Mapping
from pathlib import Path

from gpudiag.linux.cgroup import (
    UNIFIED,
    Quota,
    find_folders,
    find_processor_folders,
    frozen_by,
    parse_numbers,
    read_file,
    read_quota,
)
from gpudiag.model.evidence import Evidence

# In v1 a limit that is not set reads as the largest multiple of a page in a signed 64-bit integer.
_NO_LIMIT_BYTES = 1 << 60


class GroupWatch:
    """One process's control groups, and their counters since they were first seen."""

    def __init__(self, parent: "GroupWatch | None" = None) -> None:
        """Start before the first look; `parent` looked at the process that starts this one before it did.

        A rank may be killed before the agent, starved itself, has looked at it: then its group's OOM kills
        count from the look at the parent, if they are in the same group.
        """
        self._parent = parent
        self._text = ""
        self._folders: Mapping[str, Path] = {}
        self._oom_kills = 0
        self._quotas: dict[Path, Quota] = {}

    def look(self, pid: int) -> None:
        """Look up the groups of the process; if they have changed, count from now on."""
        text = read_file(Path(f"/proc/{pid}/cgroup"))
        if not text or text == self._text:
            return
        is_as_started = not self._text and self._parent is not None and self._parent._text == text
        self._text, self._folders = text, find_folders(text)
        self._oom_kills = self._count_oom_kills()
        if is_as_started and self._parent is not None:
            self._oom_kills = self._parent._oom_kills
        self._quotas = {folder: read_quota(folder) for folder in find_processor_folders(self._folders)}

    def frozen_by(self) -> str | None:
        """The group that has frozen the process; None if none has."""
        return frozen_by(self._folders)

    def quota(self) -> Quota | None:
        """What the strictest quota on the process did since it was first seen there; None if nothing."""
        grown = [
            Quota(
                after.periods - before.periods,
                after.throttled_periods - before.throttled_periods,
                after.seconds - before.seconds,
                after.group,
            )
            for folder, before in self._quotas.items()
            for after in (read_quota(folder),)
        ]
        worst = max(grown, key=lambda quota: quota.throttled_periods, default=None)
        return worst if worst is not None and worst.throttled_periods > 0 else None

    def memory_evidence(self) -> tuple[Evidence, ...]:
        """OOM kills in the process's group since it was first seen there and, if any, the memory limit."""
        folder = self._memory_folder()
        if folder is None:
            return ()
        counter = "memory.events" if (folder / "memory.events").is_file() else "memory.oom_control"
        kills = self._count_oom_kills() - self._oom_kills
        facts = [Evidence("oom_kills", kills, source=f"{folder / counter}, since the rank was seen there")]
        limit = _read_memory_limit(folder)
        if kills and limit is not None:
            facts.append(Evidence("memory_limit", limit, unit="B", source=str(folder)))
        return tuple(facts)

    def _memory_folder(self) -> Path | None:
        for name in ("memory", UNIFIED):
            folder = self._folders.get(name)
            if folder is not None and _count(folder) is not None:
                return folder
        return None

    def _count_oom_kills(self) -> int:
        folder = self._memory_folder()
        return 0 if folder is None else _count(folder) or 0


def _count(folder: Path) -> int | None:
    """The OOM kills in that group; None if it has no such counter."""
    for name in ("memory.events", "memory.oom_control"):
        count = parse_numbers(read_file(folder / name)).get("oom_kill")
        if count is not None:
            return count
    return None


def _read_memory_limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = read_file(folder / name).strip()
        if text.isdecimal() and int(text) < _NO_LIMIT_BYTES:
            return int(text)
    return None
