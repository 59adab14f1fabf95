"""NVML's answer as typed values, from what the guarded child sent before its deadline; or why there is none."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from gpudiag.model.device import (
    Device,
    DeviceId,
    EccLocation,
    FabricState,
    FailedCall,
    GpuProcess,
    MigInstance,
    NvLink,
    PcieErrorCounts,
    PeerAccess,
    RowRemapHistogram,
    SourceState,
    SourceStatus,
    ThrottleSeconds,
)
from gpudiag.model.host import Machine
from gpudiag.model.noun import noun
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.probe.attaching import HANDLE_CALL, SECONDS_PER_GPU, Attaching
from gpudiag.probe.nouns import missing_of, noun_of, reading_of

SOURCE = "nvml"
_LISTS = {"mig_instances": MigInstance, "nvlinks": NvLink, "ecc_locations": EccLocation}
# Readings that are objects.
_PARTS = {"throttle_seconds": ThrottleSeconds, "pcie_errors": PcieErrorCounts}
_OF_PROC = ("user", "command", "container_id", "started_at", "state")
# A GPU that gives none of these answers nothing that anybody can work with.
_VITAL_FIELDS = (
    "memory_total_bytes", "utilization_percent", "temperature_celsius", "power_draw_watts", "pstate",
    "sm_clock_mhz",
)  # fmt: skip


@noun
class NvmlFailure:
    """What nvmlInit, or the question for the number of GPUs, raised."""

    state: SourceState
    words: str  # NVML's own
    code: int | None = None
    library: str | None = None  # the file that was loaded


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
    """Whoever asked NVML: the messages of `nvml.stream_nvml`, and how that ended; see GuardedChild."""

    messages: list[Any]
    ending: str | None
    detail: str
    seconds: float
    started_at: float  # time.monotonic


def nvml_answer_of(child: Asked | None) -> NvmlAnswer:
    """The answer of an ended child of `nvml.stream_nvml`; GPUs that came late are rows with the reason.

    None: NVML was not asked.
    """
    if child is None:
        return NvmlAnswer(
            SourceStatus(SOURCE, SourceState.NOT_ASKED), None, NOT_ASKED, NOT_ASKED, NOT_ASKED, ()
        )
    messages = _Messages(child)
    failure = messages.failure()
    state = SourceState.OK if failure is None else failure.state
    if failure is None and messages.count == 0:
        state = SourceState.NO_DEVICES
    why_not = Missing(reason_of_state(state), failure.words if failure else "")
    library = messages.library
    versions = {
        name: why_not if library is None else reading_of(library, name)
        for name in ("driver_version", "nvml_version", "cuda_driver_version", "confidential_computing")
    }
    count = why_not if messages.count is None else messages.count
    return NvmlAnswer(
        SourceStatus(SOURCE, state, failure.words if failure else None, child.seconds, count),
        failure,
        **versions,
        devices=tuple(messages.device(index) for index in range(messages.count or 0)),
        failed_calls=tuple(messages.failed_calls()),
    )


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


class _Messages:
    """The child's messages, sorted by what they are about."""

    def __init__(self, child: Asked) -> None:
        self._child = child
        self.library: dict[str, Any] | None = None
        self._asking = ""
        self.count: int | None = None
        self._failed: dict[str, Any] | None = None
        self._whole: dict[int, dict[str, Any]] = {}
        self._late: dict[int, tuple[str, dict[str, Any]]] = {}
        self._processes: dict[int, dict[str, Any]] = {}
        self._peers: dict[int, list[dict[str, Any]]] = {}
        self._late_peers: dict[int, tuple[str, int]] = {}
        self._failed_calls: dict[int | None, dict[str, str]] = {}
        self._told_attaching: set[int] = set()
        for kind, *content in child.messages:
            getattr(self, f"_take_{kind}")(*content)
        self._stuck = self._stuck_pairs()
        attaching = Attaching(child.messages)
        until = attaching.until()
        in_time = until is not None and child.started_at + child.seconds < until
        self._attaching = {*self._told_attaching, *(attaching.pending() if in_time else ())}

    def _take_asking(self, call: str) -> None:
        self._asking = call

    def _take_library(self, document: dict[str, Any]) -> None:
        self.library = document
        self._failed_calls[None] = document.get("failed_calls", {})

    def _take_count(self, count: int) -> None:
        self.count = count

    def _take_attaching(self, at: float) -> None:
        """When the handles were asked for: `Attaching` reads it."""

    def _take_attached(self, index: int, at: float) -> None:
        """When a handle came: `Attaching` reads it."""

    def _take_being_attached(self, index: int) -> None:
        self._told_attaching.add(index)

    def _take_failed(self, document: dict[str, Any]) -> None:
        self._failed = document

    def _take_device(self, index: int, document: dict[str, Any]) -> None:
        self._whole[index] = document
        self._failed_calls[index] = document.get("failed_calls", {})

    def _take_late(self, index: int, call: str, document: dict[str, Any]) -> None:
        self._late[index] = (call, document)

    def _take_process(self, pid: int, document: dict[str, Any]) -> None:
        self._processes[pid] = document

    def _take_peers(self, index: int, document: dict[str, Any]) -> None:
        self._peers[index] = document["peers"]
        self._failed_calls[index] = document.get("failed_calls", self._failed_calls.get(index, {}))

    def _take_late_peers(self, index: int, call: str, other: int) -> None:
        self._late_peers[index] = (call, other)

    def failed_calls(self) -> Iterator[FailedCall]:
        """The calls that NVML answered with an error: those about no GPU first, then GPU by GPU."""
        for index in sorted(self._failed_calls, key=lambda index: -1 if index is None else index):
            for function, words in self._failed_calls[index].items():
                yield FailedCall(function, index, words)

    def _stuck_pairs(self) -> dict[int, str]:
        """The GPUs that a question about two of them hangs on, and in what words.

        Where several questions about one GPU hang, it is that GPU, and not those it was asked with.
        """
        if self._child.ending != "timed_out":
            return {}
        late = {index: told for index, told in self._late_peers.items() if index not in self._peers}
        counts = Counter(other for _, other in late.values())
        stuck = {}
        for index, (call, other) in late.items():
            blamed = other if counts[other] > 1 else index
            about = index if blamed == other else other
            with_whom = f" about it and GPU {about}" if about != blamed else ""
            stuck[blamed] = f"no answer from {call}{with_whom} within {self._child.seconds:.1f} s"
        return stuck

    def failure(self) -> NvmlFailure | None:
        """Why there is no count of GPUs, or why the child did not live to read them all."""
        child, failed = self._child, self._failed
        if failed is not None:
            return NvmlFailure(
                SourceState(failed["state"]), failed["words"], failed["code"], failed["library"]
            )
        if child.ending in ("crashed", "raised"):
            return NvmlFailure(SourceState.FAILED, f"asking NVML failed: {child.detail}")
        if self.count is None:
            call = self._asking or ("nvmlInit" if self.library is None else "nvmlDeviceGetCount")
            return NvmlFailure(SourceState.TIMED_OUT, f"no answer from {call} within {child.seconds:.1f} s")
        return None

    def device(self, index: int) -> Device:
        """The row of one GPU, whole or with the reason for what is missing."""
        if index in self._whole:
            document = self._whole[index]
            responding = _responding(document)
            if responding is True and index in self._stuck:
                responding = Missing(MissingReason.TIMED_OUT, self._stuck[index])
            return self._row(index, document, responding, None)
        call, document = self._late.get(index, (HANDLE_CALL, {}))
        child = self._child
        if child.ending == "timed_out" and index in self._attaching and call == HANDLE_CALL:
            words = f"no handle yet after {child.seconds:.1f} s; it may take {SECONDS_PER_GPU:.0f} s a GPU"
            why = Missing(MissingReason.ATTACHING, words)
        elif child.ending == "timed_out":
            why = Missing(MissingReason.TIMED_OUT, _late_words(call, document, child.seconds))
        else:
            why = Missing(MissingReason.ERROR, f"asking NVML failed in {call}: {child.detail}")
        return self._row(index, document, why, why)

    def _row(
        self, index: int, document: dict[str, Any], responding: Reading[bool], rest: Missing | None
    ) -> Device:
        """`rest` is why the fields that the document does not have are missing."""
        if rest is None and isinstance(responding, Missing) and len(document) <= 2:
            rest = responding
        if rest is not None:
            document = _completed(document, rest)
        uuid, bus_id = reading_of(document, "uuid"), reading_of(document, "bus_id")
        given: dict[str, Any] = {
            name: _nouns(noun_type, reading_of(document, name)) for name, noun_type in _LISTS.items()
        }
        histogram = reading_of(document, "row_remap_histogram")
        given["row_remap_histogram"] = (
            histogram if isinstance(histogram, Missing) else RowRemapHistogram(**histogram)
        )
        for name, noun_type in _PARTS.items():
            part = reading_of(document, name)
            given[name] = part if isinstance(part, Missing) else noun_of(noun_type, part)
        given["fabric"] = _fabric(reading_of(document, "fabric"))
        if index in self._peers:
            given["peers"] = _nouns(PeerAccess, self._peers[index])
        reasons = reading_of(document, "clocks_event_reasons")
        given["clocks_event_reasons"] = reasons if isinstance(reasons, Missing) else tuple(reasons)
        processes = reading_of(document, "processes")
        given["processes"] = (
            processes if isinstance(processes, Missing) else tuple(map(self._process, processes))
        )
        return noun_of(Device, document, id=DeviceId(uuid, bus_id, index), responding=responding, **given)

    def _process(self, listed: Mapping[str, Any]) -> GpuProcess:
        described = self._processes.get(listed["pid"])
        if described is None:
            why = Missing(MissingReason.TIMED_OUT, "its files in /proc gave no answer by the deadline")
            absent: dict[str, Any] = dict.fromkeys(_OF_PROC, why)
            return noun_of(GpuProcess, listed, visible=False, **absent)
        given = {name: reading_of(described, name) for name in _OF_PROC}
        started = reading_of(described, "started_at_seconds")
        given["started_at"] = (
            started if isinstance(started, Missing) else datetime.fromtimestamp(started, UTC)
        )
        return noun_of(GpuProcess, listed, visible=described["visible"], **given)


def _late_words(call: str, document: Mapping[str, Any], seconds: float) -> str:
    """What is known of a GPU that was not done in time: after answers, the last call may have just begun."""
    readings = len(document.keys() - {"missing", "missing_detail"})
    if readings == 0:
        return f"no answer from {call} within {seconds:.1f} s"
    count = "1 reading" if readings == 1 else f"{readings} readings"
    return f"not done within {seconds:.1f} s: {count} came, and none yet from {call}"


def _completed(document: Mapping[str, Any], rest: Missing) -> dict[str, Any]:
    """The document with every field of a Device that it lacks marked as missing for that reason.

    The words of the reason stand in `responding` alone.
    """
    fields = (*DeviceId.__dataclass_fields__, *Device.__dataclass_fields__)
    lacking = [name for name in fields if name not in document]
    missing = dict.fromkeys(lacking, rest.reason.value) | document.get("missing", {})
    return {**document, "missing": missing}


def _responding(document: Mapping[str, Any]) -> Reading[bool]:
    """True, or the reason why the GPU as a whole gives nothing."""
    absent = missing_of(document)
    if "handle" in absent:
        return absent["handle"]
    for why in absent.values():
        if why.reason in (MissingReason.DEVICE_LOST, MissingReason.RESET_REQUIRED):
            return why
    vital = [absent.get(name) for name in _VITAL_FIELDS]
    failed = [why for why in vital if why is not None and why.reason is MissingReason.ERROR]
    if failed and None not in vital:
        return Counter(failed).most_common(1)[0][0]
    return True


def _fabric(document: Any) -> Reading[FabricState]:
    if isinstance(document, Missing):
        return document
    faults = reading_of(document, "faults")
    return noun_of(FabricState, document, faults=faults if isinstance(faults, Missing) else tuple(faults))


def _nouns(noun_type: Any, documents: Any) -> Any:
    if isinstance(documents, Missing):
        return documents
    return tuple(noun_of(noun_type, document) for document in documents)


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
