"""Why NVML does not answer, in words a person can act on: what it is, and the next step."""

from gpudiag.model.device import SourceState
from gpudiag.model.host import Machine
from gpudiag.model.reading import Missing
from gpudiag.probe.nvml_answer import NvmlFailure

_UNKNOWN_ERROR, _GPU_IS_LOST, _RESET_REQUIRED = 999, 15, 16  # nvmlReturn_t


def explain_failure(failure: NvmlFailure, machine: Machine) -> str:
    """One or two sentences for the source's status, from its failure and what the machine shows."""
    explain = {
        SourceState.LIBRARY_ABSENT: _library_absent,
        SourceState.DRIVER_NOT_LOADED: _driver_not_loaded,
        SourceState.VERSION_MISMATCH: _version_mismatch,
        SourceState.NO_PERMISSION: _no_permission,
        SourceState.TIMED_OUT: _timed_out,
    }.get(failure.state, _failed)
    return explain(failure, machine)


def explain_no_devices(machine: Machine) -> str:
    """Why a working NVML may list no GPU."""
    if machine.container is not None:
        return "NVML works and lists no GPU: none was given to this container"
    return "NVML works and lists no GPU: `dmesg | grep NVRM` says whether the driver gave one up"


def _library_absent(failure: NvmlFailure, machine: Machine) -> str:
    if failure.code is None:  # pynvml itself could not be imported, and says so
        return f"{failure.words}; pip install nvidia-ml-py"
    if machine.container is not None:
        return (
            "libnvidia-ml.so.1 is not in this container: start it with its GPUs "
            "(`--gpus all`, NVIDIA Container Toolkit)"
        )
    if not isinstance(machine.kernel_driver_version, Missing):
        return (
            f"libnvidia-ml.so.1 is not found, but kernel driver {machine.kernel_driver_version} is loaded: "
            "install the driver's libraries, or mend LD_LIBRARY_PATH"
        )
    return "libnvidia-ml.so.1 is not installed: no NVIDIA driver on this machine"


def _driver_not_loaded(failure: NvmlFailure, machine: Machine) -> str:
    if machine.container is not None:
        return "the NVIDIA kernel driver is not loaded on the host of this container: look at the host first"
    modules = machine.kernel_modules
    if not isinstance(modules, Missing) and "nouveau" in modules:
        return "nouveau drives the GPU in place of the NVIDIA driver: blacklist nouveau and reboot"
    return "the NVIDIA kernel driver is not loaded: `sudo modprobe nvidia`; if that fails, `dmesg` says why"


def _version_mismatch(failure: NvmlFailure, machine: Machine) -> str:
    loaded = machine.kernel_driver_version
    library = _library_version(failure.library)
    ours = f"NVML {library}" if library else "the NVML library"
    theirs = "the loaded kernel driver" if isinstance(loaded, Missing) else f"kernel driver {loaded}"
    if machine.container is not None:
        return f"{ours} does not match {theirs}: restart this container so that it gets the host's libraries"
    return f"{ours} does not match {theirs}: reboot, or stop all GPU work and reload the nvidia modules"


def _no_permission(failure: NvmlFailure, machine: Machine) -> str:
    where = "the device list of this container" if machine.container is not None else "your groups"
    return f"the driver refuses this user: check `ls -l /dev/nvidiactl /dev/nvidia*` and {where}"


def _timed_out(failure: NvmlFailure, machine: Machine) -> str:
    return (
        f"{failure.words}: the driver hangs, or wakes up slowly without persistence mode; "
        "try once more with --deadline 30"
    )


def _failed(failure: NvmlFailure, machine: Machine) -> str:
    if failure.code == _UNKNOWN_ERROR and machine.container is not None:
        return (
            f"nvmlInit failed: {failure.words}; the container's devices were probably taken away, "
            "as by `systemctl daemon-reload`: restart the container"
        )
    if failure.code == _GPU_IS_LOST:
        return f"nvmlInit failed: {failure.words}; a GPU fell off the bus: `dmesg | grep Xid`, power-cycle"
    if failure.code == _RESET_REQUIRED:
        return f"nvmlInit failed: {failure.words}; `dmesg | grep Xid` names the GPU: reboot, or reset it"
    return f"{failure.words}; `nvidia-smi` and `dmesg | grep NVRM` may say more"


def _library_version(path: str | None) -> str | None:
    """The version in the file name of the loaded library, `libnvidia-ml.so.580.105.08`."""
    version = (path or "").rpartition("libnvidia-ml.so.")[2]
    return version if "." in version else None
