"""Processes: their directories under /proc, and their entries in a GPU's process list."""

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gpudiag.compat import UTC
from gpudiag.model.codec import format_time
from gpudiag.simulate.blueprint import Blueprint, HostFacts, HostProcess

USER_HZ = 100  # clock ticks per second in /proc/PID/stat, on every architecture that Linux runs GPUs on
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATE_NAMES = {"R": "running", "S": "sleeping", "D": "disk sleep", "Z": "zombie", "T": "stopped"}
_NOT_OURS = ("user", "command", "container_id", "started_at", "state", "slurm_job_id")


def boot_time(host: HostFacts, now: datetime) -> int:
    """The machine's boot time in whole seconds since 1970, as in /proc/stat."""
    return int(now.timestamp() - host.uptime_seconds)


def render_processes(blueprint: Blueprint, now: datetime) -> dict[str, str]:
    """The files of every process under /proc/PID."""
    files: dict[str, str] = {}
    for process in blueprint.processes:
        files |= _render_process(process, blueprint.host)
    return files


def render_open_nodes(blueprint: Blueprint) -> dict[str, str]:
    """The links under /proc/PID/fd to the device nodes that each process holds open."""
    return {
        f"proc/{process.pid}/fd/{number}": f"/dev/{node}"
        for process in blueprint.processes
        for number, node in enumerate(process.open_nodes, start=3)
    }


def describe_process(entry: Mapping[str, Any], blueprint: Blueprint, now: datetime) -> dict[str, Any]:
    """A GPU's process entry as `gpudiag.snapshot/1` has it; unknown to /proc: outside the container."""
    process = next((known for known in blueprint.processes if known.pid == entry["pid"]), None)
    missing = dict(entry.get("missing", {}))
    described = {**entry, "visible": process is not None}
    described.setdefault("gpu_instance_id", None)
    described.setdefault("compute_instance_id", None)
    if process is None:
        described |= dict.fromkeys(_NOT_OURS)
        missing |= dict.fromkeys(_NOT_OURS, "source_absent")
    else:
        described["user"] = process.user
        described["command"] = " ".join(process.argv) if process.state != "Z" else f"[{_name(process)}]"
        described["container_id"] = process.container_id
        described["state"] = process.state
        started = boot_time(blueprint.host, now) + _start_ticks(process, blueprint.host) / USER_HZ
        described["started_at"] = format_time(datetime.fromtimestamp(0, UTC) + timedelta(seconds=started))
        described["slurm_job_id"] = process.slurm_job_id
        for name in ("container_id", "slurm_job_id"):
            if described[name] is None:
                missing[name] = "source_absent"
    for name in ("gpu_instance_id", "compute_instance_id"):
        if described[name] is None:
            missing[name] = "not_supported"
    return {**described, "missing": missing}


def _render_process(process: HostProcess, host: HostFacts) -> dict[str, str]:
    directory = f"proc/{process.pid}"
    command_line = "" if process.state == "Z" else "\0".join(process.argv) + "\0"
    return {
        f"{directory}/cmdline": command_line,
        f"{directory}/comm": f"{_name(process)}\n",
        f"{directory}/status": _status(process),
        f"{directory}/stat": _stat(process, host),
        f"{directory}/cgroup": _cgroup(process),
    }


def _name(process: HostProcess) -> str:
    """The kernel's name for the process: the program's file name, cut to 15 characters."""
    return process.argv[0].rsplit("/", 1)[-1][:15]


def _status(process: HostProcess) -> str:
    ids = "\t".join([str(process.uid)] * 4)
    return (
        f"Name:\t{_name(process)}\n"
        f"State:\t{process.state} ({_STATE_NAMES[process.state]})\n"
        f"Tgid:\t{process.pid}\n"
        f"Pid:\t{process.pid}\n"
        f"PPid:\t{process.parent_pid}\n"
        f"Uid:\t{ids}\n"
        f"Gid:\t{ids}\n"
        "Threads:\t1\n"
    )


def _stat(process: HostProcess, host: HostFacts) -> str:
    """proc_pid_stat(5): 16 fields from the process group to the start (22); 24 is memory in pages."""
    start = _start_ticks(process, host)
    return (
        f"{process.pid} ({_name(process)}) {process.state} {process.parent_pid} {process.pid} "
        + "0 " * 16
        + f"{start} 0 {process.resident_bytes // _PAGE_BYTES}\n"
    )


def _start_ticks(process: HostProcess, host: HostFacts) -> int:
    return max(0, int((host.uptime_seconds - process.age_seconds) * USER_HZ))


def _cgroup(process: HostProcess) -> str:
    if process.container_id is not None:
        return f"0::/system.slice/docker-{process.container_id}.scope\n"
    if process.slurm_job_id is not None:
        return f"0::/system.slice/slurmstepd.scope/job_{process.slurm_job_id}/step_0/user/task_0\n"
    return f"0::/user.slice/user-{process.uid}.slice/session-3.scope\n"
