"""The simulated nvidia-smi: what people and GPUtil ask of the real one, with its texts and status.

It asks the NVML library that the environment gives it, as any program does. It takes: no argument
(a table), -L, -q -x and --query-gpu=FIELD,... --format=csv[,noheader][,nounits], each with -i.
Return codes as in nvidia-smi(1), "RETURN VALUE"; 18 as seen with mismatched versions.
"""

from __future__ import annotations

import os
import sys
import time

from gpudiag.simulate.nvidia_smi.fields import find_field, render_header, render_row
from gpudiag.simulate.nvidia_smi.nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    SUCCESS,
    VERSION_MISMATCH,
    Gpu,
    Nvml,
    NvmlError,
    words_of,
)

# --- the plain table

_WIDTH = 91
_NOT_THERE = "N/A"
_RULE = "+" + "-" * _WIDTH + "+"


def render_table(nvml: Nvml, gpus: list[Gpu]) -> str:
    """The table of driver, GPUs and processes in nvidia-smi's order, two lines per GPU."""
    major, minor = divmod(nvml.number("nvmlSystemGetCudaDriverVersion_v2"), 1000)
    driver = nvml.text("nvmlSystemGetDriverVersion")
    title = f"NVIDIA-SMI {driver}      Driver Version: {driver}      CUDA Version: {major}.{minor // 10}"
    lines = [time.strftime("%a %b %d %H:%M:%S %Y"), _RULE, _row(title), _RULE]
    lines += [*(_row(_columns(*heads)) for heads in _HEADS), _RULE]
    for gpu in gpus:
        lines += [_row(line) for line in _gpu_lines(gpu)]
    lines += [_RULE, _row("Processes:  GPU   PID      Type   GPU Memory  Process name")]
    lines += [_row(line) for line in _process_lines(gpus)]
    return "\n".join([*lines, _RULE])


_HEADS = (
    ("GPU  Name                   Persistence-M", "Bus-Id          Disp.A", "Volatile Uncorr. ECC"),
    ("Fan  Temp  Perf          Pwr:Usage/Cap", "Memory-Usage", "GPU-Util  Compute M."),
)


def _gpu_lines(gpu: Gpu) -> tuple[str, str]:
    name, persistence = _cell(gpu, "name"), _short(_cell(gpu, "persistence_mode"))
    bus_id, display = _cell(gpu, "pci.bus_id"), _short(_cell(gpu, "display_active"))
    fan, temperature = _cell(gpu, "fan.speed"), _cell(gpu, "temperature.gpu", "C")
    pstate = _cell(gpu, "pstate")
    power = f"{_cell(gpu, 'power.draw', 'W')} / {_cell(gpu, 'enforced.power.limit', 'W')}"
    memory = f"{_cell(gpu, 'memory.used', 'MiB')} / {_cell(gpu, 'memory.total', 'MiB')}"
    mode = f"{_cell(gpu, 'utilization.gpu', '%')}  {_short(_cell(gpu, 'compute_mode')):>10}"
    return (
        _columns(
            f"{gpu.nvml_index:>3}  {name[:26]:<26} {persistence:>9}",
            f"{bus_id} {display:>5}",
            _cell(gpu, "ecc.errors.uncorrected.volatile.total"),
        ),
        _columns(f"{f'{fan:>3} ':<5}{temperature:>4}  {pstate:>4}  {power:>24}", memory, mode),
    )


def _columns(first: str, second: str, third: str) -> str:
    return f"{first:<41} | {second:>22} | {third:>20}"


def _process_lines(gpus: list[Gpu]) -> list[str]:
    lines = []
    for gpu in gpus:
        for kind in ("Compute", "Graphics"):
            try:
                processes = gpu.processes(kind)
            except NvmlError:
                continue
            for pid, memory in processes:
                used = "N/A" if memory is None else f"{-(-memory // 1024**2)}MiB"
                lines.append(f"{gpu.nvml_index:>15} {pid:>7} {kind[0]:>8} {used:>12}  {_name_of(gpu, pid)}")
    return lines or [" No running processes found"]


def _name_of(gpu: Gpu, pid: int) -> str:
    try:
        return gpu.nvml.process_name(pid)
    except NvmlError:
        return "[Not Found]"


def _cell(gpu: Gpu, name: str, unit: str = "") -> str:
    """The value with its unit; N/A for what the GPU does not have, ERR! where the call failed."""
    field = find_field(name)
    try:
        value = str(field[0](gpu)) if field else _NOT_THERE
    except NvmlError as error:
        value = words_of(gpu.nvml, error.code)
        return _NOT_THERE if value == _NOT_THERE else "ERR!"
    return value if value == _NOT_THERE else f"{value}{unit}"


def _short(word: str) -> str:
    return {"Enabled": "On", "Disabled": "Off", "Exclusive_Process": "E. Process"}.get(word, word)


def _row(text: str) -> str:
    return f"| {text:<{_WIDTH - 2}} |"


# --- the program

INVALID_ARGUMENT_STATUS, NOT_FOUND_STATUS, NO_LIBRARY_STATUS, OTHER_STATUS = 2, 6, 12, 255
# The return codes of NVML that nvidia-smi passes on as they are (nvidia-smi(1)); others become 255.
_PASSED_ON = (4, 6, 8, 9, 10, 13, 14, 15, 18)

_NO_LIBRARY = """NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. \
Please make sure that the NVIDIA Display Driver is properly installed and present in your system.
Please also try adding directory that contains libnvidia-ml.so to your system PATH."""
_NO_DRIVER = """NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. \
Make sure that the latest NVIDIA driver is installed and running.
"""


class UnsupportedError(Exception):
    """An argument that nvidia-smi, or this simulated one, does not take."""


class _Request:
    """What the arguments ask for."""

    def __init__(self, arguments: list[str]) -> None:
        self.fields: list[str] = []
        self.formats: list[str] = []
        self.only: str | None = None
        self.flags: set[str] = set()
        rest = list(arguments)
        while rest:
            name, _, value = rest.pop(0).partition("=")
            if name == "--query-gpu":
                self.fields = [field.strip() for field in value.split(",")]
            elif name == "--format":
                self.formats = [word.strip() for word in value.split(",")]
            elif name in ("-i", "--id"):
                self.only = value or (rest.pop(0) if rest else "")
            elif name in ("-L", "--list-gpus", "-q", "--query", "-x", "--xml-format"):
                self.flags.add({"--list-gpus": "-L", "--query": "-q", "--xml-format": "-x"}.get(name, name))
            else:
                raise UnsupportedError(f"Invalid combination of input arguments: {name} is not simulated.")


def main(arguments: list[str]) -> int:
    """Answer one command line, and return the exit status."""
    try:
        request = _Request(arguments)
        _refuse_unknown(request)
    except UnsupportedError as error:
        print(error)
        return INVALID_ARGUMENT_STATUS
    try:
        nvml = Nvml()
    except OSError:
        print(_NO_LIBRARY)
        return NO_LIBRARY_STATUS
    try:
        nvml.call("nvmlInit_v2")
        return _answer(nvml, request)
    except NvmlError as error:
        print(_failure_text(nvml, error.code))
        return _status(error.code)


def _refuse_unknown(request: _Request) -> None:
    for field in request.fields:
        if find_field(field) is None:
            raise UnsupportedError(f'Field "{field}" is not a valid field to query.\n')
    if request.fields and "csv" not in request.formats:
        raise UnsupportedError("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n")
    if "-q" in request.flags and "-x" not in request.flags:
        raise UnsupportedError("Invalid combination of input arguments: only -q -x is simulated.")


def _failure_text(nvml: Nvml, code: int) -> str:
    if code == DRIVER_NOT_LOADED:
        return _NO_DRIVER
    if code != VERSION_MISMATCH:
        return f"Failed to initialize NVML: {nvml.error_text(code)}"
    # "13.580.105.08" is shown as 580.105
    version = ".".join(nvml.text("nvmlSystemGetNVMLVersion").split(".")[1:3])
    return f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {version}"


def _status(code: int) -> int:
    return code if code == SUCCESS or code in _PASSED_ON else OTHER_STATUS


def _answer(nvml: Nvml, request: _Request) -> int:
    """Print what was asked; nvidia-smi stops at the first GPU whose handle it cannot get."""
    gpus = []
    for nvml_index in range(nvml.number("nvmlDeviceGetCount_v2")):
        try:
            gpus.append(nvml.gpu(nvml_index))
        except NvmlError as error:
            print(_no_handle_text(nvml, nvml_index, error.code))
            return _status(error.code)
    if request.only is not None:
        gpus = [gpu for gpu in gpus if request.only in _names_of(gpu)]
    if not gpus:
        print("No devices were found")
        return NOT_FOUND_STATUS
    if request.fields:
        return _print_rows(gpus, request)
    if "-L" in request.flags:
        return _print_list(gpus)
    if "-q" in request.flags:
        from gpudiag.simulate.nvidia_smi.xml import render_xml  # GPUtil never needs it

        text, is_lost = render_xml(nvml, gpus)
        print(text)
        return GPU_IS_LOST if is_lost else SUCCESS
    print(render_table(nvml, gpus))
    return SUCCESS


def _names_of(gpu: Gpu) -> tuple[str, ...]:
    """The names that -i accepts for the GPU: index, UUID, bus id."""
    return str(gpu.nvml_index), gpu.text("GetUUID"), gpu.bus_id(), gpu.bus_id().lower()


def _print_rows(gpus: list[Gpu], request: _Request) -> int:
    with_units = "nounits" not in request.formats
    if "noheader" not in request.formats:
        print(render_header(request.fields, with_units=with_units))
    any_lost = False
    for gpu in gpus:
        row, is_lost = render_row(gpu, request.fields, with_units=with_units)
        print(row)
        any_lost |= is_lost
    return GPU_IS_LOST if any_lost else SUCCESS


def _print_list(gpus: list[Gpu]) -> int:
    for gpu in gpus:
        print(f"GPU {gpu.nvml_index}: {gpu.text('GetName')} (UUID: {gpu.text('GetUUID')})")
        for mig in gpu.mig_devices():
            profile = mig.text("GetName").rpartition("MIG ")[2]
            print(f"  MIG {profile:<10} Device {mig.nvml_index:>2}: (UUID: {mig.text('GetUUID')})")
    return SUCCESS


def _no_handle_text(nvml: Nvml, nvml_index: int, code: int) -> str:
    words = nvml.error_text(code)
    if code == GPU_IS_LOST:
        words = "GPU is lost.  Reboot the system to recover this GPU"
    return f"Unable to determine the device handle for GPU{_bus_id(nvml_index)}: {words}"


def _bus_id(nvml_index: int) -> str:
    """The bus id of a GPU without a handle, from the driver's files; ` N` where there are none."""
    folder = os.path.join(os.environ.get("GPUDIAG_HOST_ROOT", ""), "proc/driver/nvidia/gpus")
    try:
        return sorted(os.listdir(folder))[nvml_index].upper()
    except (OSError, IndexError):
        return f" {nvml_index}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
