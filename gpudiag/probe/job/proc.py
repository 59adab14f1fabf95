"""Processes as /proc lists them: who started whom, with which command and environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpudiag.linux.proc import list_pids, read_environment, read_stat, read_text
from gpudiag.model.untrusted_text import escape_controls, mask_words

_COMMAND_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this machine."""

    pid: int
    parent_pid: int
    state: str
    started_seconds: float  # since the boot
    name: str
    words: tuple[str, ...]  # its command line; empty for a zombie
    uid: int = -1
    environment: Mapping[str, str] | None = None  # None where it may not be read
    python: bool = False
    is_readable: bool = True  # whether this user may look into it
    ancestors: tuple[int, ...] = field(default=())  # the nearest first
    process_group: int = 0  # the pid that leads it; 0 where it is not known

    @property
    def command(self) -> str:
        """The command line, secrets masked, on one line."""
        if not self.words:
            return f"[{escape_controls(self.name)}]"
        return escape_controls(" ".join(mask_words(self.words)))[:_COMMAND_CHARACTERS]


def list_processes() -> dict[int, Process]:
    """Every process of this machine by its pid, but this one and what it started."""
    found = {pid: process for pid in list_pids() if (process := _read(pid))}
    own = {os.getpid(), os.getppid()}
    return {
        pid: _with_ancestors(process, found)
        for pid, process in found.items()
        if pid not in own and os.getpid() not in _ancestors(process, found)
    }


def _with_ancestors(process: Process, found: Mapping[int, Process]) -> Process:
    from dataclasses import replace

    return replace(process, ancestors=tuple(_ancestors(process, found)))


def _ancestors(process: Process, found: Mapping[int, Process]) -> list[int]:
    chain: list[int] = []
    pid = process.parent_pid
    while pid > 1 and pid in found and pid not in chain:
        chain.append(pid)
        pid = found[pid].parent_pid
    return chain


def _read(pid: int) -> Process | None:
    folder = f"/proc/{pid}"
    try:
        stat = read_stat(pid)
        uid = os.stat(folder).st_uid
    except (OSError, ValueError):  # it has ended
        return None
    try:
        words = tuple(read_text(f"{folder}/cmdline").rstrip("\0").split("\0"))
    except OSError:
        words = ()
    environment: dict[str, str] | None = {}
    if words and words != ("",):
        try:
            environment = read_environment(pid)
        except OSError:
            environment = None
    return Process(
        pid=pid,
        parent_pid=stat.parent_pid,
        state=stat.state,
        started_seconds=stat.started_seconds,
        name=stat.name,
        words=() if words == ("",) else words,
        uid=uid,
        environment=environment,
        python=_is_python(folder, stat.name, words),
        is_readable=environment is not None,
        process_group=stat.process_group,
    )


def _is_python(folder: str, name: str, words: tuple[str, ...]) -> bool:
    try:
        program = os.path.basename(os.readlink(f"{folder}/exe"))
    except OSError:  # a zombie, or another user's: its command line is what is left
        program = os.path.basename(words[0]) if words else name
    if program.startswith(("python", "pypy")):
        return True
    return program.endswith(("python", "python3")) or name.startswith(("python", "pt_main_thread"))


def describe_process(pid: int) -> str:
    """`pid 12 (sleep 100)`."""
    process = _read(pid)
    return f"pid {pid} ({process.command[:80]})" if process else f"pid {pid}"
