"""The other processes that the same torchrun started on this machine."""

from pathlib import Path

from gpudiag.ranks.process import is_alive


class Siblings:
    """The launcher's children on this machine, by rank."""

    def __init__(self, launcher_pid: int, ranks: range) -> None:
        """`ranks` are those that the launcher starts on this machine, including this process's own."""
        self._launcher_pid = launcher_pid
        self._ranks = ranks

    def gone(self) -> frozenset[int]:
        """The ranks of this machine that have no live process; none if the kernel does not list children."""
        alive = {_rank_of(pid) for pid in self._children() if is_alive(pid)}
        return frozenset(self._ranks) - alive if alive else frozenset()

    def _children(self) -> list[int]:
        """The launcher's children (proc_pid_task_tid_children(5))."""
        found: list[int] = []
        for path in Path(f"/proc/{self._launcher_pid}/task").glob("*/children"):
            try:
                found += [int(word) for word in path.read_text().split()]
            except OSError:  # that thread has ended
                continue
        return found


def _rank_of(pid: int) -> int | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    text = next((each[5:] for each in variables if each.startswith(b"RANK=")), b"")
    return int(text) if text.isdigit() else None
