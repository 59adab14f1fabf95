"""NVML's answer as typed values, from what the guarded child sent in time; or why there is none."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Protocol

from gpudiag.model.codec import all_missing, join_sheets, missing_of, noun, read_sheet
from gpudiag.model.device import Device, FailedCall, SourceState, SourceStatus
from gpudiag.model.host import Container, Machine
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.probe.attaching import HANDLE_CALL, SECONDS_PER_GPU, Attaching
from gpudiag.probe.sleeping import ASLEEP

SOURCE = "nvml"
_ASLEEP = Missing(MissingReason.NOT_ASKED, ASLEEP)
GONE = (MissingReason.DEVICE_LOST, MissingReason.RESET_REQUIRED)
_OF_PROC = ("user", "command", "container_id", "started_at", "state")
# A GPU that gives none of these gives nothing to work with.
_VITAL_FIELDS = (
    "memory_total_bytes",
    "utilization_percent",
    "temperature_celsius",
    "power_draw_watts",
    "pstate",
    "sm_clock_mhz",
)
_NOTES = {"missing", "missing_detail"}
_NOT_DESCRIBED = {
    "visible": False,
    "missing": dict.fromkeys(_OF_PROC, MissingReason.TIMED_OUT.value),
    "missing_detail": dict.fromkeys(_OF_PROC, "its files in /proc gave no answer by the deadline"),
}


@noun
class NvmlFailure:
    """Why NVML could not list the GPUs: what nvmlInit or a call right after it raised, or a timeout."""

    state: SourceState
    words: str  # NVML's own
    code: int | None = None
    library: str | None = None  # the file that was loaded


@noun
class NvmlLibrary:
    """What NVML reports about itself, and which of those questions failed, in NVML's words."""

    driver_version: Reading[str]
    nvml_version: Reading[str]
    cuda_driver_version: Reading[str]
    confidential_computing: Reading[str] = NOT_ASKED
    failed_calls: dict[str, str] = field(default_factory=dict)


@noun
class NvmlAnswer:
    """How NVML answered, the versions, and one row per GPU that it counts, in its own order."""

    status: SourceStatus
    failure: NvmlFailure | None
    driver_version: Reading[str]
    nvml_version: Reading[str]
    cuda_driver_version: Reading[str]
    devices: tuple[Device, ...]
    confidential_computing: Reading[str] = NOT_ASKED
    failed_calls: tuple[FailedCall, ...] = ()


class Asked(Protocol):
    """A child that asked NVML: the messages of `child.stream_nvml`, and how it ended; see GuardedChild."""

    messages: list[Any]
    ending: str | None
    detail: str
    seconds: float
    started_at: float  # time.monotonic


def nvml_answer_of(child: Asked | None) -> NvmlAnswer:
    """The answer of an ended child of `child.stream_nvml`, None if not asked; late GPUs are rows."""
    if child is None:
        return NvmlAnswer(
            SourceStatus(SOURCE, SourceState.NOT_ASKED), None, NOT_ASKED, NOT_ASKED, NOT_ASKED, ()
        )
    messages = _Messages(child)
    devices = None if messages.count is None else [messages.device(index) for index in range(messages.count)]
    return make_answer(messages.library, messages.failure(), devices, messages.failed_calls, child.seconds)


def make_answer(
    library: NvmlLibrary | None,
    failure: NvmlFailure | None,
    devices: Iterable[Device] | None,
    failed_calls: Mapping[int, Mapping[str, str]],
    seconds: float,
) -> NvmlAnswer:
    """The answer made of these parts; `devices` is None where NVML has not counted them."""
    rows = () if devices is None else _without_shared_uuids(tuple(devices))
    state = SourceState.OK if failure is None else failure.state
    if failure is None and not rows:
        state = SourceState.NO_DEVICES
    why_not = Missing(reason_of_state(state), failure.words if failure else "")
    about_none = {} if library is None else library.failed_calls
    by_index: list[tuple[int | None, Mapping[str, str]]] = [(None, about_none), *sorted(failed_calls.items())]
    return NvmlAnswer(
        SourceStatus(
            SOURCE,
            state,
            failure.words if failure else None,
            seconds,
            why_not if devices is None else len(rows),
        ),
        failure,
        why_not if library is None else library.driver_version,
        why_not if library is None else library.nvml_version,
        why_not if library is None else library.cuda_driver_version,
        rows,
        why_not if library is None else library.confidential_computing,
        tuple(
            FailedCall(function, index, words)
            for index, calls in by_index
            for function, words in calls.items()
        ),
    )


def _without_shared_uuids(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The rows; a UUID that NVML gives for several GPUs is none of theirs, as it distinguishes none."""
    counts = Counter(device.id.uuid for device in devices if not isinstance(device.id.uuid, Missing))
    shared = {uuid for uuid, count in counts.items() if count > 1}
    if not shared:
        return devices
    return tuple(
        replace(device, id=replace(device.id, uuid=_of_several(device.id.uuid, devices)))
        if device.id.uuid in shared
        else device
        for device in devices
    )


def _of_several(uuid: Reading[str], devices: tuple[Device, ...]) -> Missing:
    """Why that UUID is no reading."""
    holders = " and ".join(f"GPU {device.id.nvml_index}" for device in devices if device.id.uuid == uuid)
    return Missing(MissingReason.ERROR, f"NVML answers {uuid} for {holders}")


def reason_of_state(state: SourceState) -> MissingReason:
    """Why a reading is missing where the whole source is in this state."""
    return {
        SourceState.LIBRARY_ABSENT: MissingReason.SOURCE_ABSENT,
        SourceState.DRIVER_NOT_LOADED: MissingReason.SOURCE_ABSENT,
        SourceState.NO_PERMISSION: MissingReason.NO_PERMISSION,
        SourceState.TIMED_OUT: MissingReason.TIMED_OUT,
        SourceState.NO_DEVICES: MissingReason.DEVICE_LOST,
        SourceState.NOT_ASKED: MissingReason.NOT_ASKED,
    }.get(state, MissingReason.ERROR)


def whole_device(index: int, sheet: dict[str, Any], described: Mapping[int, dict[str, Any]]) -> Device:
    """The row of a GPU that was read; `described` is what /proc shows of processes, by pid."""
    no_handle = missing_of(sheet, "handle")
    if no_handle is not None and sheet.keys() <= _NOTES:
        return unread_device(index, {}, no_handle)
    given: dict[str, Any] = {"nvml_index": index, "responding": True}
    if "processes" in sheet:
        given["processes"] = [
            join_sheets(listed, described.get(listed["pid"], _NOT_DESCRIBED)) for listed in sheet["processes"]
        ]
    device = read_sheet(Device, {**sheet, **given})
    responding = no_handle or responding_of(device)
    return device if responding is True else replace(device, responding=responding)


def unread_device(index: int, sheet: dict[str, Any], why: Missing) -> Device:
    """The row of a GPU that was not read completely: what came, and the reason for the rest.

    Only `responding` has the reason's detail.
    """
    not_nvmls = {"nvml_index": index, "missing": {"cuda_ordinal": MissingReason.NOT_ASKED.value}}
    device = read_sheet(Device, join_sheets(not_nvmls, sheet), Missing(why.reason))
    return replace(device, responding=why)


def library_of_sleepers() -> NvmlLibrary:
    """What is known of NVML where it was left alone because all GPUs are asleep."""
    return all_missing(NvmlLibrary, _ASLEEP, failed_calls={})


def sleeping_device(index: int, bus_id: str) -> Device:
    """The row of a GPU that was not asked, because it is asleep."""
    return unread_device(index, {"bus_id": bus_id}, _ASLEEP)


def responding_of(device: Device) -> Reading[bool]:
    """True, or the reason why the GPU as a whole does not respond, by its readings."""
    readings = [device.id.uuid, device.id.bus_id, *(getattr(device, name) for name in _OWN_READINGS)]
    gone = [reading for reading in readings if isinstance(reading, Missing) and reading.reason in GONE]
    if gone:
        return next((why for why in gone if why.detail), gone[0])  # the detail is where the loss was noticed
    vital = [getattr(device, name) for name in _VITAL_FIELDS]
    absent = [why for why in vital if isinstance(why, Missing)]
    failed = [why for why in absent if why.reason is MissingReason.ERROR]
    if failed and len(absent) == len(vital):
        return Counter(failed).most_common(1)[0][0]
    return True


_OWN_READINGS = tuple(name for name in Device.__match_args__ if name not in ("id", "responding"))


def why_late(call: str, known: int, seconds: float, *, attaching: bool = False) -> Missing:
    """Why a GPU was not read completely; after `known` readings, the last call may have only just begun."""
    if attaching and call == HANDLE_CALL:
        words = f"no handle yet after {seconds:.1f} s; it may take {SECONDS_PER_GPU:.0f} s a GPU"
        return Missing(MissingReason.ATTACHING, words)
    if known == 0:
        return Missing(MissingReason.TIMED_OUT, f"no answer from {call} within {seconds:.1f} s")
    count = "1 reading" if known == 1 else f"{known} readings"
    words = f"not done within {seconds:.1f} s: {count} arrived, and none yet from {call}"
    return Missing(MissingReason.TIMED_OUT, words)


class _Messages:
    """The child's messages, sorted by what they are about."""

    def __init__(self, child: Asked) -> None:
        self._child = child
        self.library: NvmlLibrary | None = None
        self._asking = ""
        self.count: int | None = None
        self._failed: NvmlFailure | None = None
        self._whole: dict[int, dict[str, Any]] = {}
        self._late: dict[int, tuple[str, dict[str, Any]]] = {}
        self._processes: dict[int, dict[str, Any]] = {}
        self._peers: dict[int, list[dict[str, Any]]] = {}
        self._late_peers: dict[int, tuple[str, int]] = {}
        self.failed_calls: dict[int, dict[str, str]] = {}
        self._asleep: dict[int, str] = {}  # bus ids
        for kind, *content in child.messages:
            getattr(self, f"_add_{kind}")(*content)
        self._stuck = self._stuck_pairs()
        attaching = Attaching(child.messages)
        until = attaching.until()
        in_time = until is not None and child.started_at + child.seconds < until
        self._attaching = attaching.pending() if in_time else []

    def _add_asking(self, call: str) -> None:
        self._asking = call

    def _add_library(self, document: dict[str, Any]) -> None:
        self.library = read_sheet(NvmlLibrary, document)

    def _add_count(self, count: int) -> None:
        self.count = count

    def _add_asleep(self, index: int, bus_id: str) -> None:
        self._asleep[index] = bus_id

    def _add_all_asleep(self, bus_ids: list[str]) -> None:
        self.library = library_of_sleepers()
        self.count = len(bus_ids)
        self._asleep = dict(enumerate(bus_ids))

    def _add_calling(self, index: int, call: str) -> None:
        """The call about a GPU that was made next: `careful.ask_around_crashes` reads it."""

    def _add_attaching(self, at: float) -> None:
        """When the handles were asked for: `Attaching` reads it."""

    def _add_attached(self, index: int, at: float, waited: float = 0.0) -> None:
        """When a handle came: `Attaching` reads it."""

    def _add_failed(self, document: dict[str, Any]) -> None:
        self._failed = read_sheet(NvmlFailure, document)

    def _add_device(self, index: int, document: dict[str, Any]) -> None:
        self._whole[index] = document
        self.failed_calls[index] = document.get("failed_calls", {})

    def _add_late(self, index: int, call: str, document: dict[str, Any]) -> None:
        self._late[index] = (call, document)

    def _add_process(self, pid: int, document: dict[str, Any]) -> None:
        self._processes[pid] = document

    def _add_peers(self, index: int, document: dict[str, Any]) -> None:
        self._peers[index] = document["peers"]
        self.failed_calls[index] = document.get("failed_calls", self.failed_calls.get(index, {}))

    def _add_late_peers(self, index: int, call: str, other: int) -> None:
        self._late_peers[index] = (call, other)

    def _stuck_pairs(self) -> dict[int, str]:
        """The detail for each GPU that is blamed for hanging calls about two: the one that they share."""
        if self._child.ending != "timed_out":
            return {}
        late = {index: late for index, late in self._late_peers.items() if index not in self._peers}
        counts = Counter(other for _, other in late.values())
        stuck = {}
        for index, (call, other) in late.items():
            blamed = other if counts[other] > 1 else index
            about = index if blamed == other else other
            with_whom = f" about it and GPU {about}" if about != blamed else ""
            stuck[blamed] = f"no answer from {call}{with_whom} within {self._child.seconds:.1f} s"
        return stuck

    def failure(self) -> NvmlFailure | None:
        """Why there is no count of GPUs, or why the child crashed before it had read them all; else None."""
        child = self._child
        if self._failed is not None:
            return self._failed
        if child.ending in ("crashed", "raised"):
            if child.ending == "crashed" and self.count is None and self._asking:
                words = f"{self._asking} ended the process that asks NVML ({child.detail})"
                return NvmlFailure(SourceState.FAILED, words)
            return NvmlFailure(SourceState.FAILED, f"asking NVML failed: {child.detail}")
        if self.count is None:
            call = self._asking or ("nvmlInit" if self.library is None else "nvmlDeviceGetCount")
            return NvmlFailure(SourceState.TIMED_OUT, f"no answer from {call} within {child.seconds:.1f} s")
        return None

    def device(self, index: int) -> Device:
        """The row of one GPU, whole or with the reason for what is missing."""
        if index in self._asleep:
            return sleeping_device(index, self._asleep[index])
        if index in self._whole:
            peers = {"peers": self._peers[index]} if index in self._peers else {}
            device = whole_device(index, {**self._whole[index], **peers}, self._processes)
            if device.responding is True and index in self._stuck:
                return replace(device, responding=Missing(MissingReason.TIMED_OUT, self._stuck[index]))
            return device
        call, sheet = self._late.get(index, (HANDLE_CALL, {}))
        child = self._child
        if child.ending == "timed_out":
            known = len(sheet.keys() - _NOTES)
            why = why_late(call, known, child.seconds, attaching=index in self._attaching)
        else:
            why = Missing(MissingReason.ERROR, f"asking NVML failed in {call}: {child.detail}")
        return unread_device(index, sheet, why)


_UNKNOWN_ERROR, _GPU_IS_LOST, _RESET_REQUIRED, _OPERATING_SYSTEM = 999, 15, 16, 17  # nvmlReturn_t
CANNOT_LOAD = "the driver's library cannot be loaded"


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
        return f"NVML works and lists no GPU: none was given to {_this_container(machine.container)}"
    return "NVML works and lists no GPU: `dmesg | grep NVRM` shows whether the driver gave one up"


def _this_container(container: Container) -> str:
    return f"this container ({container.words})"


def _library_absent(failure: NvmlFailure, machine: Machine) -> str:
    if failure.code is None:  # pynvml itself could not be imported, and the words have it
        from gpudiag.installed import pip_command  # late, as in gputil/answer.py

        return f"{failure.words}; {pip_command('nvidia-ml-py')}"
    if machine.container is not None:
        return (
            f"libnvidia-ml.so.1 is not in {_this_container(machine.container)}: start it with its GPUs "
            "(`--gpus all`, NVIDIA Container Toolkit)"
        )
    if not isinstance(machine.kernel_driver_version, Missing):
        return (
            f"libnvidia-ml.so.1 is not found, but kernel driver {machine.kernel_driver_version} is loaded: "
            "install the driver's libraries, or fix LD_LIBRARY_PATH"
        )
    return "libnvidia-ml.so.1 is not installed: no NVIDIA driver on this machine"


def _driver_not_loaded(failure: NvmlFailure, machine: Machine) -> str:
    if machine.container is not None:
        host = f"the host of {_this_container(machine.container)}"
        return f"the NVIDIA kernel driver is not loaded on {host}: look at the host first"
    modules = machine.kernel_modules
    if not isinstance(modules, Missing) and "nouveau" in modules:
        return "nouveau drives the GPU in place of the NVIDIA driver: blacklist nouveau and reboot"
    return "the NVIDIA kernel driver is not loaded: `sudo modprobe nvidia`; if that fails, `dmesg` shows why"


def _version_mismatch(failure: NvmlFailure, machine: Machine) -> str:
    loaded = machine.kernel_driver_version
    library = _library_version(failure.library)
    ours = f"NVML {library}" if library else "the NVML library"
    theirs = "the loaded kernel driver" if isinstance(loaded, Missing) else f"kernel driver {loaded}"
    if machine.container is not None:
        container = _this_container(machine.container)
        return f"{ours} does not match {theirs}: restart {container} so that it gets the host's libraries"
    return f"{ours} does not match {theirs}: reboot, or stop all GPU work and reload the nvidia modules"


def _no_permission(failure: NvmlFailure, machine: Machine) -> str:
    container = machine.container
    if _is_wsl(machine):
        return f"the driver refuses this user: check `ls -l /dev/dxg`, and {_ON_WINDOWS}"
    where = "your groups" if container is None else f"the device list of {_this_container(container)}"
    return f"the driver refuses this user: check `ls -l /dev/nvidiactl /dev/nvidia*` and {where}"


def _timed_out(failure: NvmlFailure, machine: Machine) -> str:
    return (
        f"{failure.words}: the driver hangs, or wakes up slowly without persistence mode; "
        "`gpudiag list --deadline 30` waits longer"
    )


def _failed(failure: NvmlFailure, machine: Machine) -> str:
    """What failed, then after a colon what to do about it, which the finding takes for its remedy."""
    from gpudiag.model.remedy import fit_remedy, platform_of  # a listing of GPUs that answer needs none

    if failure.words.startswith(CANNOT_LOAD):
        linker = (
            failure.words.removeprefix(f"{CANNOT_LOAD}: ").replace("symbol: ", "symbol ").replace(": ", ", ")
        )
        return f"{CANNOT_LOAD} ({linker}): {_why_not_loaded(failure.words)}"
    reason = failure.words.replace(": ", ", ")  # behind the first colon begins what to do
    words, platform = f"nvmlInit failed ({reason})", platform_of(machine)
    if failure.code == _UNKNOWN_ERROR and machine.container is not None:
        return (
            f"{words}: restart the container; its devices were probably taken away, "
            "for example by `systemctl daemon-reload`"
        )
    if failure.code == _OPERATING_SYSTEM and _is_wsl(machine):
        return f"{words}: {_ON_WINDOWS}"
    if failure.code == _OPERATING_SYSTEM:
        return (
            f"{words}: look for a limit or a sandbox that denies the driver's"
            " files: `ulimit -a`, `dmesg | tail`"
        )
    if failure.code == _GPU_IS_LOST:
        written = "look for the GPU that fell off the bus with `dmesg | grep Xid`, then"
        return f"{words}: {fit_remedy(f'{written} [power cycle: power-cycle the machine]', platform)}"
    if failure.code == _RESET_REQUIRED:
        reset = fit_remedy("find the GPU with `dmesg | grep Xid`, and [reset: reset it, or reboot]", platform)
        return f"{words}: {reset}"
    return f"{words}: run `nvidia-smi`, and read `dmesg | grep NVRM`"


def _is_wsl(machine: Machine) -> bool:
    return not isinstance(machine.device_nodes, Missing) and "/dev/dxg" in machine.device_nodes


_ON_WINDOWS = (
    "on Windows run `wsl --update`, install the newest NVIDIA driver for Windows (none inside of WSL),"
    " put the card into WDDM mode (`nvidia-smi -dm 0`), then `wsl --shutdown`"
)
# The dynamic linkers' words: glibc's and musl's.
_OF_ANOTHER_LIBC = re.compile(
    r"undefined symbol|symbol not found|Error relocating|GLIBC_[\d.]+' not found|ld-linux\S*|libc\.musl|"
    r"__\w+_chk",
    re.IGNORECASE,
)
_OF_ANOTHER_MACHINE = re.compile(
    r"wrong ELF class|invalid ELF header|Exec format|file too short|incompatible", re.IGNORECASE
)


def _why_not_loaded(words: str) -> str:
    """What to do about a library of the driver that is there and cannot be loaded."""
    if _OF_ANOTHER_LIBC.search(words):
        return (
            "use an image or system with glibc (Debian, Ubuntu, UBI); the driver's libraries are built for"
            " glibc, and here is another C library (musl, as in Alpine) or an older glibc"
        )
    if _OF_ANOTHER_MACHINE.search(words):
        return (
            "install the driver's libraries again, for the processor that `uname -m` names; the file is"
            " damaged, or of another architecture (`file -L` of its path)"
        )
    return "run `ldd` on the file: a library that it needs is missing, or the file may not be read (`ls -lL`)"


def _library_version(path: str | None) -> str | None:
    """The version in the file name of the loaded library, `libnvidia-ml.so.580.105.08`."""
    version = (path or "").rpartition("libnvidia-ml.so.")[2]
    return version if "." in version else None
