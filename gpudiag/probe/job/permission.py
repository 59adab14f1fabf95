"""Why a process may not be looked into, and the command or the setting that would allow it."""

import os
from contextlib import suppress
from typing import Any

from gpudiag.installed import root_command
from gpudiag.linux.proc import read_status, read_text
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.sheet import Sheet

_SYS_PTRACE = 19  # include/uapi/linux/capability.h
_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
ADD_CAPABILITY = (
    "give it: `docker run --cap-add SYS_PTRACE`, in Kubernetes `securityContext: {capabilities: {add:"
    " [SYS_PTRACE]}}`; or look from the host: `sudo gpudiag hang PID`, with the host's pid"
)


def explain_refusal(pid: int, words: str) -> Missing:
    """The reason why a process's memory may not be read, with what to do; `words` are the refusal's own."""
    return Missing(MissingReason.NO_PERMISSION, _reason(pid) or words)


def read_trace_rights() -> dict[str, Any]:
    """A sheet's document of TraceRights: what decides whether this user may look into its processes."""
    sheet = Sheet()
    sheet.values["is_root"] = os.geteuid() == 0
    sheet.read("ptrace_scope", lambda: int(read_text(_SCOPE)))
    sheet.values["has_capability"] = _has_capability()
    return sheet.document()


def _reason(pid: int) -> str:
    owner, as_root = None, root_command(f"hang {pid}")
    with suppress(OSError):
        owner = os.stat(f"/proc/{pid}").st_uid
    scope = _scope()
    if os.geteuid() != 0:
        if owner is not None and owner != os.geteuid():
            return f"it belongs to another user (uid {owner}): `{as_root}`"
        if scope == 1:
            return (
                f"kernel.yama.ptrace_scope is 1, so only a parent may trace a process: `{as_root}`,"
                " or `sudo sysctl kernel.yama.ptrace_scope=0`"
            )
        if scope in (2, 3):
            return f"kernel.yama.ptrace_scope is {scope}, so only root may trace a process: `{as_root}`"
        return (
            "the kernel refuses it, for example because the process has other rights"
            f" (setuid, not dumpable): `{as_root}`"
        )
    if scope == 3:
        return (
            "kernel.yama.ptrace_scope is 3: no process may trace another until the"
            " machine boots with another value"
        )
    if not _has_capability():
        return f"root lacks the capability SYS_PTRACE here, as in most containers: {ADD_CAPABILITY}"
    return (
        "the kernel refuses it even to root, perhaps by a security module (SELinux,"
        " AppArmor, seccomp): look at the kernel log"
    )


def _scope() -> int | None:
    with suppress(OSError, ValueError):
        return int(read_text(_SCOPE))
    return None


def _has_capability() -> bool:
    with suppress(OSError, ValueError, KeyError):
        return bool(int(read_status("self")["CapEff"], 16) >> _SYS_PTRACE & 1)
    return True
