"""Write gpudiag/reference/nvml_symbols.json and nvml_structs.json from the installed pynvml.

The simulated NVML library exports the functions that are named there and lays its answers out as
the structs are laid out there. `--check` writes nothing and exits 1 where the installed pynvml asks
for a function, a constant or a struct that the data does not have as it is.
"""

import ctypes
import importlib.metadata
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pynvml

REFERENCE = Path(__file__).resolve().parent.parent / "gpudiag" / "reference"
SYMBOLS_FILE = REFERENCE / "nvml_symbols.json"
STRUCTS_FILE = REFERENCE / "nvml_structs.json"

# Names that nvml.h has had, that real drivers still export, and that pynvml no longer asks for.
# torch calls nvmlInit and nvmlInit_v2, NCCL the unversioned look-ups, gpustat the older process lists.
OLDER_FUNCTIONS = (
    "nvmlInit",
    "nvmlInit_v2",
    "nvmlComputeInstanceGetInfo",
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetDetailedEccErrors",
    "nvmlDeviceGetFanControlPolicy_v2",
    "nvmlDeviceGetGpuInstancePossiblePlacements",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetGridLicensableFeatures",
    "nvmlDeviceGetGridLicensableFeatures_v2",
    "nvmlDeviceGetGridLicensableFeatures_v3",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByPciBusId",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetPciInfo_v2",
    "nvmlDeviceRemoveGpu",
    "nvmlDeviceRemoveGpu_v2",
    "nvmlEventSetWait",
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
    "nvmlVgpuInstanceGetLicenseInfo",
)

# nvmlErrorString's words where pynvml has none of its own (nvml.h's comments, abridged).
OTHER_RETURN_TEXTS = {
    "NVML_SUCCESS": "Success",
    "NVML_ERROR_IN_USE": "In use by another client",
    "NVML_ERROR_NO_DATA": "No data",
    "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED": "ECC mode is incompatible with vGPU",
    "NVML_ERROR_INSUFFICIENT_RESOURCES": "Insufficient resources",
    "NVML_ERROR_FREQ_NOT_SUPPORTED": "Frequency is not supported",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": "Argument version mismatch",
    "NVML_ERROR_DEPRECATED": "Requested functionality has been deprecated",
    "NVML_ERROR_NOT_READY": "System is not ready for the request",
    "NVML_ERROR_GPU_NOT_FOUND": "No GPUs were found",
    "NVML_ERROR_INVALID_STATE": "Resource not in correct state",
}

SIMPLE_KINDS: dict[type, str] = {
    ctypes.c_char: "s",
    ctypes.c_byte: "b",
    ctypes.c_ubyte: "B",
    ctypes.c_short: "h",
    ctypes.c_ushort: "H",
    ctypes.c_int: "i",
    ctypes.c_uint: "I",
    ctypes.c_long: "q",
    ctypes.c_ulong: "Q",
    ctypes.c_longlong: "q",
    ctypes.c_ulonglong: "Q",
    ctypes.c_float: "f",
    ctypes.c_double: "d",
    ctypes.c_char_p: "P",
    ctypes.c_void_p: "P",
}


def read_functions() -> list[str]:
    """Every NVML function that pynvml's source asks the library for, sorted."""
    return sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', inspect.getsource(pynvml))))


def read_constants() -> dict[str, int]:
    """Every integer that pynvml names: NVML_* and the nvml* flags and struct versions."""
    return {
        name: int(value)
        for name, value in sorted(vars(pynvml).items())
        if isinstance(value, int) and name.lower().startswith("nvml") and abs(value) < 1 << 64
    }


def read_return_texts() -> dict[str, str]:
    """The text of nvmlErrorString for each return code, by the code's name."""
    known: dict[int, str] = pynvml.NVMLError._errcode_to_string
    texts = {}
    for name, code in sorted(read_constants().items(), key=lambda item: item[1]):
        if name == "NVML_SUCCESS" or name.startswith("NVML_ERROR_"):
            texts[name] = known.get(code) or OTHER_RETURN_TEXTS.get(name) or "Unknown Error"
    return texts


def read_structs() -> dict[str, dict[str, Any]]:
    """Size and fields of every struct and union of pynvml; a field is [name, offset, kind, count]."""
    structs = {}
    for name, value in sorted(vars(pynvml).items()):
        is_struct = inspect.isclass(value) and issubclass(value, ctypes.Structure | ctypes.Union)
        if is_struct and value.__name__ == name and getattr(value, "_fields_", None):
            structs[name] = {"size": ctypes.sizeof(value), "fields": _describe_fields(value)}
    return structs


def _describe_fields(struct: Any) -> list[list[str | int]]:
    fields: list[list[str | int]] = []
    for name, kind, *bits in struct._fields_:
        if bits:
            continue  # a bit-field: the simulated library answers none
        element, count = _element(kind)
        fields.append([name, getattr(struct, name).offset, _kind_word(element), count])
    return fields


def _element(kind: Any) -> tuple[Any, int]:
    """The type of one element, and how many there are in a row."""
    if issubclass(kind, ctypes.Array):
        inner, count = _element(kind._type_)
        return inner, count * kind._length_
    return kind, 1


def _kind_word(kind: Any) -> str:
    """The format letter of `struct` for a simple type, the struct's name for another struct."""
    if kind in SIMPLE_KINDS:
        return SIMPLE_KINDS[kind]
    if issubclass(kind, ctypes.Structure | ctypes.Union):
        return str(kind.__name__)
    if issubclass(kind, ctypes._Pointer) or not hasattr(kind, "_fields_"):
        return "P"
    raise TypeError(f"no kind for {kind}")


def read_reference() -> tuple[dict[str, Any], dict[str, Any]]:
    """What nvml_symbols.json and nvml_structs.json hold for the installed pynvml."""
    source = f"nvidia-ml-py {importlib.metadata.version('nvidia-ml-py')}"
    functions = read_functions()
    symbols = {
        "source": source,
        "functions": functions,
        "older_functions": sorted(set(OLDER_FUNCTIONS) - set(functions)),
        "return_texts": read_return_texts(),
        "constants": read_constants(),
    }
    return symbols, {"source": source, "structs": read_structs()}


def find_gaps() -> list[str]:
    """What the installed pynvml asks for that the data lacks or has otherwise, one line each."""
    symbols, structs = read_reference()
    known, known_structs = json.loads(SYMBOLS_FILE.read_text()), json.loads(STRUCTS_FILE.read_text())
    exported = {*known["functions"], *known["older_functions"]}
    gaps = [f"function {name}" for name in symbols["functions"] if name not in exported]
    for name, value in symbols["constants"].items():
        # Counts and "one beyond the last" grow with each release without being asked for.
        if known["constants"].get(name, value) != value and not re.search(r"(COUNT|MAX|All)$", name):
            gaps.append(f"constant {name}: {known['constants'][name]} became {value}")
    for name, layout in structs["structs"].items():
        if known_structs["structs"].get(name) != layout:
            gaps.append(f"struct {name}")
    return gaps


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write the content as JSON with one struct, name or constant per line."""
    text = json.dumps(content, indent=1)
    # A field is short: keep each on one line.
    text = re.sub(r"\[\s+(\"\w+\"),\s+(\d+),\s+(\"\w+\"),\s+(\d+)\s+\]", r"[\1, \2, \3, \4]", text)
    path.write_text(text + "\n")


def main(arguments: list[str]) -> int:
    """Write the data, or with `--check` hold it against the installed pynvml."""
    if arguments == ["--check"]:
        gaps = find_gaps()
        for gap in gaps:
            print(gap)
        return 1 if gaps else 0
    symbols, structs = read_reference()
    write_json(SYMBOLS_FILE, symbols)
    write_json(STRUCTS_FILE, structs)
    print(f"{len(symbols['functions'])} functions, {len(structs['structs'])} structs: {symbols['source']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
