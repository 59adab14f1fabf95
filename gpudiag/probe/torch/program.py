"""What torch is and what it sees, run as a program by the interpreter whose torch is asked.

`PYTHON program.py` writes JSON lines to file descriptor 3, as `guard.start_program` expects:

    ["absent", WORDS]          torch is not installed there
    ["build", {...}]           model.TorchFacts, as far as the build shows it
    ["counts", {...}]          how many GPUs torch counts, and whether CUDA initialises
    ["device", ORDINAL, {...}] one GPU as CUDA shows it, once a context was tried on it
    ["finished", SECONDS]

torch is imported once, in a process that never touches CUDA: even to ask torch for its architectures makes
CUDA unusable in all that is forked later. Every question is asked in a fork of it, one per GPU, so that a
context that hangs or crashes costs only its own GPU, and its memory is freed at once. Where a fork turns out
unusable, whatever made it so, the question is asked again in an interpreter of its own: `PYTHON program.py
QUESTION DESCRIPTOR`. The program runs under any interpreter from Python 3.9 on and imports of gpudiag a file
alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from ctypes import CDLL
from typing import Any, Callable, NoReturn  # noqa: UP035 - for old interpreters

_RESULT_FD = 3
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def main() -> None:
    """Write what this interpreter's torch is and sees; or the answer to one question."""
    started = time.monotonic()
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _emit(["absent", f"torch is not installed for {sys.executable}"])
    else:
        if len(sys.argv) > 1:
            question, descriptor = sys.argv[1:]
            _write(int(descriptor), _answer(torch, question))
            return
        libraries = read_libraries(torch) if torch.version.cuda is None else _ask(torch, "libraries")
        _emit(["build", read_build(torch, libraries)])
        _ask_cuda(torch)
    _emit(["finished", time.monotonic() - started])


def read_build(torch: Any, libraries: dict[str, Any] | str) -> dict[str, Any]:
    """Facts without a driver, as a model.TorchFacts document; `libraries`: `read_libraries`'s answer."""
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
    if isinstance(libraries, str):
        failed = {"missing": dict.fromkeys(_OF_LIBRARIES, "error")}
        libraries = {**failed, "missing_detail": dict.fromkeys(_OF_LIBRARIES, libraries)}
    missing = {name: {**facts[name], **libraries[name]} for name in ("missing", "missing_detail")}
    return {**facts, **libraries, **missing}


_OF_LIBRARIES = ("architectures", "nccl_version", "nccl_built_version", "nccl_library")


def read_libraries(torch: Any) -> dict[str, Any]:
    """What torch's libraries are, as far as it takes calls after which no fork may use CUDA."""
    facts: dict[str, Any] = {"missing": {}, "missing_detail": {}}
    cpu_build = "CPU build of torch" if torch.version.cuda is None else None
    # torch.cuda.get_arch_list() answers the same, and only after CUDA was initialised.
    _read(facts, "architectures", lambda: torch._C._cuda_getArchFlags().split(), cpu_build)
    _read(facts, "nccl_version", lambda: _loaded_cuda().loaded_nccl(torch)[0], cpu_build)
    _read(facts, "nccl_built_version", lambda: _loaded_cuda().built_nccl(torch), cpu_build)
    _read(facts, "nccl_library", lambda: _loaded_cuda().loaded_nccl(torch)[1], cpu_build)
    if facts["nccl_library"] is None and "nccl_library" not in facts["missing"]:
        facts["missing"]["nccl_library"] = "not_supported"
        facts["missing_detail"]["nccl_library"] = "NCCL is a part of torch, or its file cannot be known"
    return facts


def _ask_cuda(torch: Any) -> None:
    if torch.version.cuda is None:
        return
    counts = _ask(torch, "counts")
    if isinstance(counts, str):
        counts = {"cuda_available": None, "init_error": counts, "device_count": 0}
    _emit(["counts", counts])
    if not counts["cuda_available"]:
        return
    children = {
        ordinal: _fork(torch, f"device {ordinal}", _RESULT_FD) for ordinal in range(counts["device_count"])
    }
    for ordinal, child in children.items():
        ending = _ending(child)
        if ending:
            _emit(["device", ordinal, _broken_device(ending)])


def _answer(torch: Any, question: str) -> Any:
    if question == "libraries":
        return read_libraries(torch)
    if question == "counts":
        return read_counts(torch)
    ordinal = int(question.partition(" ")[2])
    return ["device", ordinal, read_device(torch, ordinal)]


def _ask(torch: Any, question: str) -> dict[str, Any] | str:
    """The answer of a process that is forked for it; how that ended where it gave none."""
    reading, writing = os.pipe()
    child = _fork(torch, question, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    ending = _ending(child)
    answer: dict[str, Any] | str = json.loads(text) if text else ending
    return answer


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


def _fork(torch: Any, question: str, descriptor: int) -> int:
    """The pid of a fork that writes the answer to one question and exits."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            if question != "libraries" and _loaded_cuda().refuses_cuda(torch):
                _ask_afresh(question, descriptor)
            answer = _answer(torch, question)
            if _loaded_cuda().speaks_of_a_fork(json.dumps(answer)):
                _ask_afresh(question, descriptor)
            _write(descriptor, answer)
            status = 0
    finally:
        os._exit(status)


def _ask_afresh(question: str, descriptor: int) -> NoReturn:
    """Become a new interpreter that imports torch: this fork cannot use CUDA."""
    os.set_inheritable(descriptor, True)
    os.execv(sys.executable, [sys.executable, __file__, question, str(descriptor)])  # noqa: S606 - itself


def _loaded_cuda() -> Any:
    """The file of gpudiag of that name; gpudiag need not be installed for this interpreter."""
    name = "loaded_cuda"
    if name not in sys.modules:
        place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", f"{name}.py")
        spec = importlib.util.spec_from_file_location(name, place)
        if spec is None or spec.loader is None:
            raise ImportError(place)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def _ending(pid: int) -> str:
    """How a fork ended badly, in words; empty where it ended well. The guard bounds the wait."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        return ""
    return f"its process was killed by signal {-code}" if code < 0 else "its process failed"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _emit(message: list[Any]) -> None:
    _write(_RESULT_FD, message)


def _write(descriptor: int, answer: Any) -> None:
    os.write(descriptor, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    sys.path.pop(0)  # this file's own directory, whose names are no top-level modules
    main()
