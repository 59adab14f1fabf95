"""What torch answers on a simulated machine, as a CUDA build would under its CUDA_VISIBLE_DEVICES.

The answer has the form of `Scenario.torch`: a TorchFacts object and one DeviceView object per CUDA
device. There are two counts, as in torch: the one it takes from NVML without starting CUDA,
and the devices that CUDA itself lists. Read in torch 2.13, torch/cuda/__init__.py and
c10/cuda/CUDAFunctions.cpp.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint
from gpudiag.units import KIB

_LEADING_NUMBER = re.compile(r"[+-]?\d+")

# What torch's context took of one H100's and one H200's memory before anything was allocated (driver
# 580.159.04, torch 2.11.0+cu130, 2026-11-26: free by NVML less free by torch). It depends on GPU, driver,
# torch.
_CONTEXT_BYTES = 650_969_088
_INVALID_ORDINAL = "CUDA error: invalid device ordinal"
_NO_GPUS = "No CUDA GPUs are available"
_CPU_BUILD = "CPU build of torch"
_UNKNOWN_TO_TORCH = ("memory_used_bytes", "utilization_percent", "driver_version")


def select_visible(value: str | None, uuids: Sequence[str]) -> list[int]:
    """The positions in `uuids` that CUDA_VISIBLE_DEVICES leaves, in its order; all where it is unset."""
    if value is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in value.split(","):
        position = _position(entry.strip(), uuids)
        if position is None:
            break
        if position in chosen:
            return []
        chosen.append(position)
    return chosen


def _position(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.startswith(("GPU-", "MIG-")):
        matching = [at for at, uuid in enumerate(uuids) if uuid.startswith(entry)]
        return matching[0] if len(matching) == 1 else None
    number = _LEADING_NUMBER.match(entry)
    if number is None or not 0 <= int(number[0]) < len(uuids):
        return None
    return int(number[0])


def render_torch(blueprint: Blueprint) -> dict[str, Any]:
    """`{"facts": ..., "devices": ...}`, or `{"absent": true}` where torch is not installed."""
    if blueprint.torch.absent:
        return {"absent": True}
    document: dict[str, Any] = {"missing": {}, "missing_detail": {}}
    _add_build(document, blueprint)
    devices = _add_cuda(document, blueprint)
    return {"facts": document, "devices": devices}


def cuda_devices(blueprint: Blueprint) -> list[tuple[GpuBlueprint, Mapping[str, Any] | None]]:
    """The GPUs as CUDA numbers them under CUDA_VISIBLE_DEVICES, each with its MIG instance, if any.

    A process sees one MIG instance: the first, unless CUDA_VISIBLE_DEVICES names another.
    """
    gpus = [gpu for gpu in blueprint.listed() if gpu.cuda_lists_it]
    if blueprint.torch.reordered:
        gpus = gpus[-1:] + gpus[:-1]
    visible = blueprint.environment.get("CUDA_VISIBLE_DEVICES")
    instances = [(gpu, instance) for gpu in gpus for instance in gpu.gpu.readings.get("mig_instances", ())]
    if visible is not None and visible.startswith("MIG-"):
        chosen = select_visible(visible, [str(instance["uuid"]) for _, instance in instances])
        return [instances[at] for at in chosen[:1]]
    if instances:
        gpus, alone = [gpu for gpu in gpus if not gpu.gpu.readings.get("mig_instances")], instances[:1]
        if not gpus:
            return alone if visible is None or select_visible(visible, [""]) else []
    chosen = select_visible(visible, [str(gpu.gpu.readings.get("uuid", "")) for gpu in gpus])
    return [(gpus[at], None) for at in chosen]


def _add_build(document: dict[str, Any], blueprint: Blueprint) -> None:
    build = blueprint.torch
    document |= {
        "version": build.version,
        "python": build.python,
        "nccl_available": build.cuda_runtime_version is not None,
        "gloo_available": True,
    }
    _put(document, "cuda_runtime_version", build.cuda_runtime_version, "not_supported", _CPU_BUILD)
    _put(document, "architectures", list(build.architectures) or None, "not_supported", _CPU_BUILD)
    _put(document, "nccl_version", build.nccl_version, "not_supported", _CPU_BUILD)
    built = build.nccl_built_version or build.nccl_version
    _put(document, "nccl_built_version", built, "not_supported", _CPU_BUILD)
    _put(
        document, "nccl_library", build.nccl_library, "not_supported", "a simulated machine has no such file"
    )


def _add_cuda(document: dict[str, Any], blueprint: Blueprint) -> list[dict[str, Any]]:
    """Fill in what torch counts, and return one view per CUDA device."""
    counts = ("cuda_available", "device_count", "nvml_device_count", "context_starts")
    if blueprint.torch.hangs:
        for name in counts:
            _put(document, name, None, "timed_out", "CUDA does not return")
        return []
    nvml_count = _nvml_count(blueprint)
    _put(document, "nvml_device_count", nvml_count, "error", "torch got no answer from NVML")
    error = _cuda_error(blueprint)
    if blueprint.torch.cuda_runtime_version is None or error is not None:
        document["cuda_available"] = False
        # torch.cuda.device_count() takes NVML's count, where NVML answers.
        document["device_count"] = (nvml_count or 0) if blueprint.torch.cuda_runtime_version else 0
        reason, detail = ("error", error) if error else ("not_supported", _CPU_BUILD)
        _put(document, "context_starts", None, reason, detail)
        return []
    devices = cuda_devices(blueprint)
    views = [_view(at, gpu, instance, blueprint) for at, (gpu, instance) in enumerate(devices)]
    document["cuda_available"] = bool(views)
    document["device_count"] = len(views) if nvml_count is None else nvml_count
    # A GPU that NVML counts and CUDA does not list.
    views += [_broken_view(at, _INVALID_ORDINAL) for at in range(len(views), document["device_count"])]
    errors = [gpu.context_error for gpu, _ in devices if gpu.context_error]
    errors += [_INVALID_ORDINAL if devices else _NO_GPUS] * (len(views) - len(devices))
    started = True if views and not errors else None
    # The torch probe's text where contexts start on some GPUs only.
    where = f"on {len(errors)} of {len(views)} GPUs: " if len(errors) < len(views) else ""
    _put(document, "context_starts", started, "error", f"{where}{errors[0]}" if errors else _NO_GPUS)
    return views if document["cuda_available"] else []


def _nvml_count(blueprint: Blueprint) -> int | None:
    """torch.cuda._device_count_nvml(): None where it answers -1."""
    if not blueprint.nvml.present or blueprint.nvml.init_code != 0:
        return None
    visible = blueprint.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.startswith("MIG-"):
        return None
    return len(select_visible(visible, [str(gpu.gpu.readings.get("uuid", "")) for gpu in blueprint.listed()]))


def _cuda_error(blueprint: Blueprint) -> str | None:
    """Torch's error text where CUDA cannot start at all; None where it starts."""
    build = blueprint.torch
    if build.cuda_runtime_version is None:
        return None
    if build.cuda_error is not None:
        return build.cuda_error
    driver, runtime = blueprint.nvml.cuda_driver_version, build.cuda_runtime_version
    # A driver runs what was built for its own CUDA major version or an older one.
    if driver and int(driver.split(".")[0]) < int(runtime.split(".")[0]):
        major, minor = (int(part) for part in driver.split("."))
        return (
            f"The NVIDIA driver on your system is too old (found version {major * 1000 + minor * 10}). "
            "Please "
            "update your GPU driver"
        )
    return None


def _view(
    at: int, gpu: GpuBlueprint, instance: Mapping[str, Any] | None, blueprint: Blueprint
) -> dict[str, Any]:
    readings = gpu.gpu.readings
    memory = instance or readings
    if gpu.context_error is not None:
        return _broken_view(at, gpu.context_error)
    view = _empty_view(at)
    total, free = _memory(memory, blueprint)
    view |= {"name": memory["name"], "memory_total_bytes": total, "memory_free_bytes": free}
    return view | {"uuid": memory["uuid"], "bus_id": gpu.bus_id, "context_starts": True}


def _broken_view(at: int, error: str) -> dict[str, Any]:
    """The view of a GPU on which no context starts: every reading is missing with that error."""
    view = _empty_view(at)
    for name in ("uuid", "bus_id", "name", "memory_total_bytes", "memory_free_bytes", "context_starts"):
        _put(view, name, None, "error", error)
    return view


def _empty_view(at: int) -> dict[str, Any]:
    view: dict[str, Any] = {"source": "torch", "source_index": at, "missing": {}, "missing_detail": {}}
    for name in _UNKNOWN_TO_TORCH:
        _put(view, name, None, "not_supported", "torch does not report it")
    return view


def _memory(memory: Mapping[str, Any], blueprint: Blueprint) -> tuple[int, int]:
    """Total and free bytes: CUDA does not count what the driver reserves; unified memory is the host's."""
    if "memory_total_bytes" not in memory:
        host = blueprint.host
        return host.memory_total_kib * KIB, max(0, host.memory_available_kib * KIB - _CONTEXT_BYTES)
    total = memory["memory_total_bytes"] - memory.get("memory_reserved_bytes", 0)
    return total, max(0, memory["memory_free_bytes"] - _CONTEXT_BYTES)


def _put(document: dict[str, Any], name: str, value: Any, reason: str, detail: str) -> None:
    """Set a value, or null with its reason."""
    document[name] = value
    if value is None:
        document["missing"][name] = reason
        document["missing_detail"][name] = detail
