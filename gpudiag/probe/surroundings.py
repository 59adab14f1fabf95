"""What a doctor looks at beside the sources: programs, packages, rights, folders, ports, sockets.

Run in a guarded child, a thread for each topic: a network file system can block forever.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from threading import Thread
from typing import Any

from gpudiag.linux.child import die_with_parent
from gpudiag.probe import packages
from gpudiag.probe.job.permission import read_trace_rights
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, SOURCE_ABSENT, TIMED_OUT, Absent, Sheet
from gpudiag.reference.service_port import SERVICE_PORT

PROGRAMS = (
    *("nvidia-smi", "dmesg", "journalctl", "py-spy", "pystack", "cc", "gcc", "clang"),
    *("torchrun", "srun", "sbatch", "mpirun", "accelerate", "deepspeed", "horovodrun", "kubectl"),
)
# gpudiag's own, and those of the ranks, which the job's interpreter has.
PACKAGES = (
    "nvidia-ml-py",
    "GPUtil",
    "fastapi",
    "uvicorn",
    "httptools",
    "psycopg",
    "py-spy",
    "pystack",
    "ziglang",
)
JOB_PACKAGES = ("torch", "numpy", "deepspeed", "accelerate", "horovod", "tensorflow")
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
# Where `gpudiag serve` listens, and torch's ranks meet, by default.
PORTS = (SERVICE_PORT, 29500)
KUBELET_SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
_INTERPRETER_SECONDS = 10.0


def stream_surroundings(
    emit: Callable[[Any], None], root: str, folder: str, python: str | None, environment: Mapping[str, str]
) -> None:
    """Send `("topic", sheet)` for each topic; `folder`: of the state, `python`: another interpreter."""
    topics: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
        (_programs, (environment,)),
        (_packages, ()),
        (_job_packages, (python,)),
        (_rights, ()),
        (_state_folder, (folder,)),
        (_ports, ()),
        (_nodes, (root,)),
        (_kubelet, (root,)),
        (_page, ()),
    )
    threads = [Thread(target=_send, args=(emit, read, words), daemon=True) for read, words in topics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _send(emit: Callable[[Any], None], read: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    sheet = Sheet()
    read(sheet, *arguments)
    emit(("topic", sheet.document()))


def _programs(sheet: Sheet, environment: Mapping[str, str]) -> None:
    sheet.read("programs", find_programs, environment)


def find_programs(environment: Mapping[str, str]) -> dict[str, str]:
    """Where each program is: beside this interpreter, else on PATH; what $CC names counts as `CC`."""
    beside = os.path.dirname(sys.executable)
    path = os.pathsep.join((beside, environment.get("PATH", "")))
    named = {name: shutil.which(name, path=path) for name in PROGRAMS}
    words = environment.get("CC", "").split()
    if words:
        named["CC"] = shutil.which(words[0], path=path)
    return {name: place for name, place in named.items() if place}


def _packages(sheet: Sheet) -> None:
    sheet.read("packages", packages.read_packages, [*PACKAGES])


def _job_packages(sheet: Sheet, python: str | None) -> None:
    sheet.read_together(("job_packages", "torch"), _ask, python)
    if sheet.values.get("torch", "") is None:
        del sheet.values["torch"]
        sheet.mark("torch", SOURCE_ABSENT, "torch is not installed")


def _ask(python: str | None) -> tuple[dict[str, str], dict[str, Any] | None]:
    names = [*JOB_PACKAGES, *NCCL_PACKAGES]
    if python is None:
        found, torch = packages.read_packages(names), packages.read_torch()
    else:
        found, torch = _ask_other(python, names)
    return found, _torch_sheet(found, torch)


def _ask_other(python: str, names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    argv = [python, packages.__file__, *names]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_INTERPRETER_SECONDS,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        found, torch = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise Absent(TIMED_OUT, f"{python} gave no answer within {_INTERPRETER_SECONDS:.0f} s") from None
    except OSError as error:
        raise Absent(ERROR, f"{python} cannot be run: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise Absent(ERROR, f"{python} is no working Python") from None
    return found, torch


def _torch_sheet(found: Mapping[str, str], torch: Mapping[str, str]) -> dict[str, Any] | None:
    if "version" not in torch:
        return None
    sheet = Sheet()
    sheet.values["version"] = torch["version"]
    if "cuda" in torch:
        sheet.values["cuda"] = torch["cuda"]
    else:
        sheet.mark("cuda", NOT_SUPPORTED)
    nccl = next((found[name] for name in NCCL_PACKAGES if name in found), None)
    if nccl is None:
        sheet.mark("nccl", SOURCE_ABSENT)
    else:
        sheet.values["nccl"] = nccl
    return sheet.document()


def _rights(sheet: Sheet) -> None:
    sheet.read("trace_rights", read_trace_rights)


def _state_folder(sheet: Sheet, folder: str) -> None:
    sheet.read("state_folder", read_state_folder, folder)


def read_state_folder(folder: str) -> dict[str, Any]:
    """A sheet of model.doctor.StateFolder: a file is written and removed again, and no folder is left."""
    sheet = Sheet()
    sheet.values |= {"path": folder, "problem": ""}
    place = folder
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)  # gpudiag makes the folders that are not there yet
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        where = "" if place == folder else f"{place}: "
        sheet.values["problem"] = f"{where}{error.strerror or error}"
    sheet.read("free_bytes", lambda: shutil.disk_usage(place).free)
    return sheet.document()


def _ports(sheet: Sheet) -> None:
    sheet.read("ports", lambda: {str(port): _is_free(port) for port in PORTS})


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def _nodes(sheet: Sheet, root: str) -> None:
    sheet.read("closed_nodes", find_closed_nodes, root)


def find_closed_nodes(root: str) -> list[str]:
    """NVIDIA's device files that this user may not read and write: GPUs, control and unified memory."""
    folder = os.path.join(root, "dev")
    names = (name for name in sorted(os.listdir(folder)) if name.startswith("nvidia"))
    wanted = (name for name in names if name[6:].isdecimal() or name in ("nvidiactl", "nvidia-uvm"))
    return [f"/dev/{name}" for name in wanted if not os.access(os.path.join(folder, name), os.R_OK | os.W_OK)]


def _kubelet(sheet: Sheet, root: str) -> None:
    sheet.read("kubelet", _may_ask_kubelet, os.path.join(root, KUBELET_SOCKET))


def _may_ask_kubelet(path: str) -> bool:
    os.stat(path)
    return os.access(path, os.R_OK | os.W_OK)


def _page(sheet: Sheet) -> None:
    sheet.read("page", _is_page_built)


def _is_page_built() -> bool:
    spec = find_spec("gpudiag_api")
    if spec is None or not spec.submodule_search_locations:
        raise Absent(SOURCE_ABSENT, "the package gpudiag_api is not here")
    return os.path.exists(os.path.join(spec.submodule_search_locations[0], "static", "index.html"))
