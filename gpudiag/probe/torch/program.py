"""What torch is and what it sees, run as a program by the interpreter whose torch is asked.

`PYTHON program.py` writes JSON lines to file descriptor 3, as `guard.start_program` expects:

    ["absent", WORDS]          torch is not installed there
    ["build", {...}]           model.TorchFacts, as far as the build tells it
    ["counts", {...}]          how many GPUs torch counts, and whether CUDA initialises
    ["device", ORDINAL, {...}] one GPU as CUDA shows it, once a context was tried on it
    ["finished", SECONDS]

torch is imported once, in a process that never touches CUDA. Every question that does is asked in a
fork of it, one per GPU, so that a context that hangs or crashes costs only its own GPU, and its memory is
freed at once. The program runs under any interpreter from Python 3.9 on and imports nothing of gpudiag.
"""

from __future__ import annotations

import json
import os
import sys
import time
from ctypes import CDLL
from typing import Any, Callable  # noqa: UP035 - for old interpreters

_RESULT_FD = 3
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def main() -> None:
    """Write what this interpreter's torch is and sees."""
    started = time.monotonic()
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _emit(["absent", f"torch is not installed for {sys.executable}"])
    else:
        _emit(["build", read_build(torch)])
        _ask_cuda(torch)
    _emit(["finished", time.monotonic() - started])


def read_build(torch: Any) -> dict[str, Any]:
    """Facts that need no driver, in the form of a model.TorchFacts document."""
    distributed = torch.distributed.is_available()
    facts: dict[str, Any] = {
        "version": torch.__version__,
        "python": sys.executable,
        "nccl_available": distributed and torch.distributed.is_nccl_available(),
        "gloo_available": distributed and torch.distributed.is_gloo_available(),
        "missing": {},
        "missing_detail": {},
    }
    cpu_build = "CPU build of torch" if torch.version.cuda is None else None
    _read(facts, "cuda_runtime_version", lambda: torch.version.cuda, cpu_build)
    # torch.cuda.get_arch_list() answers the same, and only after CUDA was initialised.
    _read(facts, "architectures", lambda: torch._C._cuda_getArchFlags().split(), cpu_build)
    _read(facts, "nccl_version", lambda: ".".join(map(str, torch.cuda.nccl.version())), cpu_build)
    return facts


def _ask_cuda(torch: Any) -> None:
    if torch.version.cuda is None:
        return
    counting, writing = os.pipe()
    child = _fork(lambda: os.write(writing, json.dumps(read_counts(torch)).encode()))
    os.close(writing)
    with os.fdopen(counting) as pipe:
        text = pipe.read()
    ending = _ending(child)
    counts: dict[str, Any] = (
        json.loads(text) if text else {"cuda_available": None, "init_error": ending, "device_count": 0}
    )
    _emit(["counts", counts])
    if not counts["cuda_available"]:
        return
    children = {
        ordinal: _fork(lambda: _emit(["device", ordinal, read_device(torch, ordinal)]))  # noqa: B023 - forked at once
        for ordinal in range(counts["device_count"])
    }
    for ordinal, child in children.items():
        ending = _ending(child)
        if ending:
            _emit(["device", ordinal, _broken_device(ending)])


def read_counts(torch: Any) -> dict[str, Any]:
    """How many GPUs torch counts, by NVML and by CUDA, and CUDA's words where it does not initialise."""
    counts: dict[str, Any] = {"missing": {}, "missing_detail": {}, "init_error": None}
    # By NVML, without a context; -1 is torch's word for "NVML did not answer".
    _read(counts, "nvml_device_count", lambda: _not_negative(torch.cuda._device_count_nvml()))
    counts["device_count"] = torch.cuda.device_count()
    try:
        torch.cuda.init()
        counts["cuda_available"] = torch.cuda.is_available()
    except Exception as error:  # noqa: BLE001 - CUDA's words are the answer
        counts["cuda_available"] = False
        counts["init_error"] = _first_line(error)
    return counts


def read_device(torch: Any, ordinal: int) -> dict[str, Any]:
    """One GPU as CUDA shows it, in the form of a model.DeviceView document, with a context started."""
    view: dict[str, Any] = {"missing": {}, "missing_detail": {}}
    try:
        properties = torch.cuda.get_device_properties(ordinal)
    except Exception as error:  # noqa: BLE001 - CUDA's words are the answer
        return _broken_device(_first_line(error))
    # These need no context, and identify a GPU on which none starts.
    _read(view, "uuid", lambda: f"GPU-{properties.uuid}")
    _read(view, "bus_id", lambda: _bus_id(properties))
    try:
        torch.zeros(1, device=ordinal).item()
    except Exception as error:  # noqa: BLE001 - CUDA's words are the answer
        broken = _broken_device(_first_line(error))
        return {**broken, **{name: view[name] for name in ("uuid", "bus_id") if view[name] is not None}}
    view["context_starts"] = True
    _read(view, "name", lambda: properties.name)
    _read(view, "memory_total_bytes", lambda: properties.total_memory)
    _read(view, "memory_free_bytes", lambda: torch.cuda.mem_get_info(ordinal)[0])
    return view


def _broken_device(words: str) -> dict[str, Any]:
    return {"missing": {"context_starts": "error"}, "missing_detail": {"context_starts": words}}


def _bus_id(properties: Any) -> str:
    """The PCI address; torch 2.9 and later have its parts."""
    domain, bus, device = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def _read(document: dict[str, Any], field: str, read: Callable[[], Any], not_here: str | None = None) -> None:
    """Fill one field, or the reason why it is missing; `not_here` is a reason not to try at all."""
    document[field] = None
    if not_here:
        reason, detail = "not_supported", not_here
    else:
        try:
            document[field] = read()
        except AttributeError as error:
            reason, detail = "function_not_found", f"this torch is too old: {error}"
        except Exception as error:  # noqa: BLE001 - one fact costs only itself
            reason, detail = "error", _first_line(error)
        else:
            return
    document["missing"][field] = reason
    document["missing_detail"][field] = detail


def _not_negative(count: int) -> int:
    if count < 0:
        raise RuntimeError("torch got no answer from NVML")
    return count


def _fork(run: Callable[[], Any]) -> int:
    """The pid of a fork that runs one question and exits."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            run()
            status = 0
    finally:
        os._exit(status)


def _ending(pid: int) -> str:
    """How a fork ended badly, in words; empty where it ended well. The guard bounds the wait."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        return ""
    return f"its process was killed by signal {-code}" if code < 0 else "its process failed"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _emit(message: list[Any]) -> None:
    os.write(_RESULT_FD, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.path.pop(0)  # this file's own directory, whose names are no top-level modules
    main()
