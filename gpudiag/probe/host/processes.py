"""What /proc shows of a process that NVML lists, and the container that a process runs in.

Run in a guarded child: the command line of a process stuck in the driver can block forever.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any

from gpudiag.linux.proc import Stat, parse_stat, read_environment, read_stat, read_status, read_text
from gpudiag.model.untrusted_text import escape_controls, mask_words
from gpudiag.probe.sheet import ERROR, NO_PERMISSION, SOURCE_ABSENT, Absent, Sheet, reason_of

# --- one process

_HIDING = ("hidepid=2", "hidepid=invisible", "hidepid=4", "hidepid=ptraceable")
_CONTAINER_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_FIELDS_OF_PROC = ("user", "command", "container_id", "started_at", "state", "slurm_job_id")
# Slurm's cgroup of a job: /system.slice/slurmstepd.scope/job_7/..., with NODE_ before it where a machine has
# several slurmd; of cgroup v1 /slurm/uid_1000/job_7/... (slurm.schedmd.com/cgroup_v2.html; read 2026-11).
_SLURM_JOB = re.compile(r"/[^/\n]*slurm[^/\n]*/(?:uid_\d+/)?job_(\d+)(?=/|$)", re.MULTILINE)

# Others that limit a job's devices by its control group: PBS, HTCondor, LSF (their guides, "cgroups"; read
# 2026-11).
_OTHER_JOB = re.compile(r"/(pbs_jobs|htcondor|lsf)[^/\n]*/([^/\n]+)")
_BATCH_SYSTEMS = {"pbs_jobs": "PBS", "htcondor": "HTCondor", "lsf": "LSF"}


_MOST_PARENTS = 8
# The kernel's names of programs that start everything of a session, a container or a batch job (at most 15
# characters).
_OF_MACHINE = (
    "systemd",
    "init",
    "sshd",
    "login",
    "su",
    "sudo",
    "tmux",
    "screen",
    "containerd-shim",
    "docker-init",
    "tini",
    "dumb-init",
    "conmon",
    "slurmstepd",
    "slurmd",
    "kubelet",
    "cron",
)


def read_job_cgroup(root: str = "/") -> str:
    """The batch job in whose control group this process is (`Slurm job 7`), also by pam_slurm_adopt.

    Raises:
        Absent: it is in none.
    """
    text = _text_in(root, _CGROUP[1:])
    slurm = _SLURM_JOB.search(text)
    if slurm:
        return f"Slurm job {slurm[1]}"
    other = _OTHER_JOB.search(text)
    if other is None:
        raise Absent(SOURCE_ABSENT, "this process is in the control group of no batch job")
    return f"{_BATCH_SYSTEMS[other[1]]} job {escape_controls(other[2])}"


def read_process(pid: int, root: str = "/") -> dict[str, Any]:
    """A sheet: `visible`, `user`, `command`, `container_id`, `state`, `started_at`, `slurm_job_id`.

    The start is in Unix time. In a container NVML has the host's pids, which its /proc does not know.
    """
    directory = os.path.join(root, "proc", str(pid))
    sheet = Sheet(_reason_of)
    sheet.values["visible"] = os.path.isdir(directory)
    if not sheet.values["visible"]:
        why = (SOURCE_ABSENT, "the process has ended, or is outside this container")
        if hides_processes(root):
            why = (NO_PERMISSION, "/proc is mounted with hidepid: it shows a user's own processes only")
        for field in _FIELDS_OF_PROC:
            sheet.mark(field, *why)
        return sheet.document()
    sheet.read("user", _user, directory, root)
    sheet.read("command", _command, directory)
    sheet.read("container_id", lambda: parse_container_id(read_text(directory, "cgroup")))
    sheet.read("state", lambda: parse_stat(read_text(directory, "stat")).state)
    sheet.read("started_at", _started_at, directory, root)
    sheet.read("slurm_job_id", _slurm_job_id, directory)
    return sheet.document()


def stat_of_process(pid: int, root: str = "/") -> Stat | None:
    """What the kernel counts of a process; None if /proc does not show it. Its start identifies it."""
    try:
        stat = read_stat(pid, root=os.path.join(root, "proc"))
        _ = stat.state, stat.start_ticks
    except (OSError, IndexError, ValueError):
        return None
    return stat


def read_parents(stat: Stat, root: str = "/") -> list[dict[str, Any]]:
    """Who started a process, and so on, the nearest first: pid and command line of each but the machine's."""
    found: list[dict[str, Any]] = []
    pid = stat.parent_pid
    while pid > 1 and len(found) < _MOST_PARENTS:
        parent = stat_of_process(pid, root)
        if parent is None or parent.name.startswith(_OF_MACHINE):
            break
        with suppress(OSError):  # it has ended since
            found.append({"pid": pid, "command": _command(os.path.join(root, "proc", str(pid)))})
        pid = parent.parent_pid
    return found


def hides_processes(root: str = "/") -> bool:
    """Whether /proc hides other users' processes from this one (proc(5), hidepid 2 or `invisible`, and 4)."""
    if os.geteuid() == 0 and root == "/":
        return False
    try:
        with open(os.path.join(root, "proc/mounts")) as file:
            mounts = [line.split() for line in file]
    except OSError:
        return False
    options = [mount[3].split(",") for mount in mounts if len(mount) > 3 and mount[1:3] == ["/proc", "proc"]]
    return any(option in _HIDING for mount in options[-1:] for option in mount)


def _reason_of(error: Exception) -> tuple[str, str]:
    if isinstance(error, ProcessLookupError):
        return SOURCE_ABSENT, "the process ended during the look"
    return reason_of(error)


def _user(directory: str, root: str) -> str:
    uid = read_status(os.path.basename(directory), os.path.dirname(directory)).get("Uid")
    if uid is None:
        raise Absent(ERROR, "no Uid in status")
    return user_name(int(uid.split()[0]), root)


def user_name(uid: int, root: str = "/") -> str:
    """The name of a user, from the machine's passwd file, else from its name service; else the number."""
    try:
        for line in read_text(root, "etc/passwd").splitlines():
            name, _, number, *_ = line.split(":")
            if number == str(uid):
                return name
    except (OSError, ValueError):
        pass  # no passwd file here, or not one that can be read: the name service may still know
    if root != "/":
        return str(uid)
    import pwd  # asks the name service, which may be a slow server

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _command(directory: str) -> str:
    """The command line, secrets masked; where there is none (zombie, kernel thread), the name in brackets."""
    words = read_text(directory, "cmdline").strip("\0").split("\0")
    shown = " ".join(mask_words(words)) if words != [""] else f"[{read_text(directory, 'comm').strip()}]"
    return escape_controls(shown)


def parse_container_id(cgroup: str) -> str:
    """The id of the container that a /proc/PID/cgroup names.

    Raises:
        Absent: it names none; the process runs on the host, or the container's name space hides it.
    """
    found = _CONTAINER_ID.search(cgroup)
    if found is None:
        raise Absent(SOURCE_ABSENT, "its cgroup names no container")
    return found[1]


def _slurm_job_id(directory: str) -> int:
    """The Slurm job of the process, by its cgroup, which it cannot choose, else by its environment.

    Raises:
        Absent: it has none, or its environment is another user's.
    """
    try:
        found = parse_slurm_job(read_text(directory, "cgroup"))
    except FileNotFoundError:  # a kernel without cgroups
        found = None
    if found is not None:
        return found
    try:
        number = read_environment(os.path.basename(directory), os.path.dirname(directory)).get("SLURM_JOB_ID")
    except PermissionError as error:
        why = "its cgroup names no Slurm job, and its environment is another user's"
        raise Absent(SOURCE_ABSENT, why) from error
    if number is not None and number.isdecimal() and number.isascii():
        return int(number)
    raise Absent(SOURCE_ABSENT, "it belongs to no Slurm job")


def parse_slurm_job(cgroup: str) -> int | None:
    """The Slurm job that a /proc/PID/cgroup names, or None."""
    found = _SLURM_JOB.search(cgroup)
    return None if found is None else int(found[1])


def _started_at(directory: str, root: str) -> float:
    """Unix time of the start: boot time plus the start in clock ticks (proc_pid_stat(5), field 22)."""
    started_seconds = parse_stat(read_text(directory, "stat")).started_seconds
    for line in read_text(root, "proc/stat").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + started_seconds
    raise Absent(ERROR, "no btime in /proc/stat")


# --- the container around it

# A file whose presence names the runtime.
_MARKS = (
    ("var/run/secrets/kubernetes.io", "kubernetes"),
    ("run/secrets/kubernetes.io", "kubernetes"),
    ("run/.containerenv", "podman"),
    (".singularity.d", "apptainer"),
    (".dockerenv", "docker"),
)
# A piece of the cgroup's path, or of the path that is mounted as /etc/hosts, that names the runtime.
_PIECES = (
    (re.compile(r"kubepods|/kubelet/pods/"), "kubernetes"),
    (re.compile(r"libpod|/overlay-containers/"), "podman"),
    (re.compile(r"docker"), "docker"),
    (re.compile(r"containerd|/nerdctl/"), "containerd"),
    (re.compile(r"/lxc(?:\.|/)"), "lxc"),
    (re.compile(r"machine\.slice/machine-|systemd-nspawn"), "systemd-nspawn"),
)
# Files that every runtime mounts into a container from its own directory on the host.
_MOUNTED = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
_CGROUP, _MOUNTS = "/proc/self/cgroup", "/proc/self/mountinfo"
_WORD_FILE = "run/systemd/container"
# PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h: the namespace of the kernel's own first process.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
# Images set `container=` to these for systemd; their runtimes leave a mark of their own as well.
_WORDS_OF_IMAGES = ("docker", "podman", "oci")
_KERNEL_THREAD = "kthreadd"  # process 2 there, and in no other namespace


def read_container(root: str = "/") -> dict[str, Any] | None:
    """Runtime, id and sign of the container as a sheet's document; None outside, and in a virtual machine."""
    cgroup = _text_in(root, _CGROUP[1:])
    mounted = parse_mounted_roots(_text_in(root, _MOUNTS[1:]))
    found = _name_runtime(root, cgroup, mounted)
    if found is None:
        return None
    sheet = Sheet(reason_of)
    sheet.values["runtime"], sheet.values["sign"] = found
    sheet.read("container_id", lambda: parse_container_id("\n".join((cgroup, *mounted))))
    return sheet.document()


def _name_runtime(root: str, cgroup: str, mounted: list[str]) -> tuple[str, str] | None:
    """The runtime's name, and the sign that names it."""
    # What the kernel shows of this process comes first; what an image may hold as well counts only where
    # another root or process 1 is in between. Kubernetes runs on another runtime, whose marks are there as
    # well.
    evidence = {_CGROUP: cgroup, _MOUNTS: "\n".join(mounted)}
    by_piece = next(
        ((name, sign) for piece, name in _PIECES for sign, text in evidence.items() if piece.search(text)),
        None,
    )
    if by_piece is not None and by_piece[0] == "kubernetes":
        return by_piece
    by_mark = next(
        ((name, f"/{mark}") for mark, name in _MARKS if os.path.lexists(os.path.join(root, mark))), None
    )
    if by_piece is not None:
        return by_piece if by_mark is None else by_mark
    if _is_machine_itself(root):
        return None
    word = _text_in(root, _WORD_FILE).strip()  # what the runtime passed to systemd
    of_init = _word_of_init(root)
    if of_init in _WORDS_OF_IMAGES and not _has_layers(root):
        of_init = None
    by_word = (word, f"/{_WORD_FILE}") if word else (of_init, "container= of process 1") if of_init else None
    return by_mark or by_word


def _has_layers(root: str) -> bool:
    """Whether the root is a stack of an image's layers, or processes are not in the first namespace."""
    rows = [line.partition(" - ") for line in _text_in(root, _MOUNTS[1:]).splitlines()]
    kinds = [after.split()[0] for before, _, after in rows if before.split()[4:5] == ["/"] and after.split()]
    try:
        other = os.readlink(os.path.join(root, "proc/self/ns/pid")) != _FIRST_PID_NAMESPACE
    except OSError:
        other = False
    return other or (not kinds) or "overlay" in kinds[-1]


def _is_machine_itself(root: str) -> bool:
    """Whether process 1 is the kernel's first, with our root: not so under Apptainer and `--pid=host`."""
    try:
        namespace = os.readlink(os.path.join(root, "proc/self/ns/pid"))
    except OSError:
        return False
    ours, first = (parse_root_mount(_text_in(root, f"proc/{pid}/mountinfo")) for pid in ("self", "1"))
    is_first = namespace == _FIRST_PID_NAMESPACE and _text_in(root, "proc/2/comm").strip() == _KERNEL_THREAD
    return is_first and ours is not None and ours == first


def parse_root_mount(mountinfo: str) -> tuple[str, str] | None:
    """The device and the folder in it that are mounted as /, fields 3 and 4 of proc_pid_mountinfo(5)."""
    rows = [line.split() for line in mountinfo.splitlines()]
    return next(((row[2], row[3]) for row in reversed(rows) if len(row) > 4 and row[4] == "/"), None)


def _word_of_init(root: str) -> str | None:
    """The value of `container=` in the environment of the first process, which LXC and others set."""
    for variable in _text_in(root, "proc/1/environ").split("\0"):
        name, _, value = variable.partition("=")
        if name == "container" and value:
            return value
    return None


def parse_mounted_roots(mountinfo: str) -> list[str]:
    """The source paths of the files that a runtime mounts: field 4 of proc_pid_mountinfo(5) for each."""
    rows = (line.split() for line in mountinfo.splitlines())
    return [row[3] for row in rows if len(row) > 4 and row[4] in _MOUNTED]


def _text_in(root: str, name: str) -> str:
    """A file's text; empty where it cannot be read, which is no evidence of a container."""
    try:
        return read_text(root, name)
    except OSError:
        return ""
