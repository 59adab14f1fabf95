"""The container that this process runs in, by the files that its runtime leaves."""

from __future__ import annotations

import os
import re
from typing import Any

from gpudiag.probe.host.processes import parse_container_id
from gpudiag.probe.sheet import Sheet, reason_of

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


def read_container(root: str = "/") -> dict[str, Any] | None:
    """The runtime's name and the container's id as a sheet's document; None outside a container."""
    cgroup = _text(root, "proc/self/cgroup")
    mounted = parse_mounted_roots(_text(root, "proc/self/mountinfo"))
    runtime = _runtime(root, cgroup, mounted)
    if runtime is None:
        return None
    sheet = Sheet(reason_of)
    sheet.values["runtime"] = runtime
    sheet.read("container_id", lambda: parse_container_id("\n".join((cgroup, *mounted))))
    return sheet.document()


def _runtime(root: str, cgroup: str, mounted: list[str]) -> str | None:
    # Kubernetes runs on another runtime, whose marks are there as well: look for Kubernetes first.
    evidence = "\n".join((cgroup, *mounted))
    by_piece = next((name for piece, name in _PIECES if piece.search(evidence)), None)
    if by_piece == "kubernetes":
        return by_piece
    by_mark = next((name for mark, name in _MARKS if os.path.lexists(os.path.join(root, mark))), None)
    word = _text(root, "run/systemd/container").strip()  # what the runtime told systemd
    return by_mark or by_piece or word or _word_of_init(root)


def _word_of_init(root: str) -> str | None:
    """The value of `container=` in the environment of the first process, which LXC and others set."""
    for variable in _text(root, "proc/1/environ").split("\0"):
        name, _, value = variable.partition("=")
        if name == "container" and value:
            return value
    return None


def parse_mounted_roots(mountinfo: str) -> list[str]:
    """The source paths of the files that a runtime mounts: field 4 of proc_pid_mountinfo(5) for each."""
    rows = (line.split() for line in mountinfo.splitlines())
    return [row[3] for row in rows if len(row) > 4 and row[4] in _MOUNTED]


def _text(root: str, name: str) -> str:
    """A file's text; empty where it cannot be read, which is no evidence of a container."""
    try:
        with open(os.path.join(root, name), errors="replace") as file:
            return file.read()
    except OSError:
        return ""
