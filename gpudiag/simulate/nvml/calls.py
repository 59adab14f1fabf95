"""The shape of each NVML call: what each argument is, and the answer where the machine has none.

A shape is a word per argument:

    d       the handle of the device that the call is about (the subject)
    k  K    an integer of 4 or 8 bytes that goes in, and selects the answer
    h       the handle of a second device, which selects the answer
    t       a text that selects the answer (compared without case)
    m8      a struct with an integer at offset 8 that selects the answer (several: m0m4)
    T8      a struct with a text at offset 8 that selects the answer
    o  o4   where the rest of the answer, or its next 4 bytes, go
    s       a text buffer, the next argument (n) being its length
    H       where a handle goes
    c       a count: the caller's room goes in, the number there are comes out (INSUFFICIENT_SIZE)
    C       a count where too little room is no error: 0 asks how many, else the room is filled
    a24     where that many elements of 24 bytes go; aH: of handles
    l8      where the rest of the answer goes; the argument before (n) has the room in units of 8
    n  -    an argument that belongs to a neighbour, or is ignored
    f       the records of nvmlDeviceGetFieldValues, the argument before (n) being their number
    v       short for m0o: a struct with its version first, which comes out filled

Within a struct, `c8` and `a40@16` are a count at offset 8 and an array whose address is at 16.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from gpudiag.reference.declaration import Call, Field, by_question
from gpudiag.reference.nvml import constant, exported_functions
from gpudiag.reference.readings import READINGS

INVALID_ARGUMENT = constant("NVML_ERROR_INVALID_ARGUMENT")
NOT_SUPPORTED = constant("NVML_ERROR_NOT_SUPPORTED")
NO_PERMISSION = constant("NVML_ERROR_NO_PERMISSION")
NOT_FOUND = constant("NVML_ERROR_NOT_FOUND")
VERSION_MISMATCH = constant("NVML_ERROR_ARGUMENT_VERSION_MISMATCH")

_BY_HAND: dict[str, str] = {
    # the library and the driver
    "nvmlInit": "",
    "nvmlInit_v2": "",
    "nvmlInitWithFlags": "-",
    "nvmlSystemGetDriverVersion": "s n",
    "nvmlSystemGetNVMLVersion": "s n",
    "nvmlSystemGetCudaDriverVersion": "o",
    "nvmlSystemGetCudaDriverVersion_v2": "o",
    "nvmlSystemGetConfComputeState": "o",
    "nvmlSystemGetProcessName": "k s n",
    "nvmlSystemGetHicVersion": "c a4",
    "nvmlGetExcludedDeviceCount": "o",
    "nvmlGetBlacklistDeviceCount": "o",
    "nvmlUnitGetCount": "o",
    # handles
    "nvmlDeviceGetCount": "o",
    "nvmlDeviceGetCount_v2": "o",
    "nvmlDeviceGetHandleByIndex": "k H",
    "nvmlDeviceGetHandleByIndex_v2": "k H",
    "nvmlDeviceGetHandleByUUID": "t H",
    "nvmlDeviceGetHandleByUUIDV": "T8 H",
    "nvmlDeviceGetHandleByPciBusId": "t H",
    "nvmlDeviceGetHandleByPciBusId_v2": "t H",
    "nvmlDeviceGetHandleBySerial": "t H",
    # identity
    "nvmlDeviceGetSerial": "d s n",
    "nvmlDeviceGetIndex": "d o",
    "nvmlDeviceGetMinorNumber": "d o",
    "nvmlDeviceGetBrand": "d o",
    "nvmlDeviceGetCudaComputeCapability": "d o4 o4",
    "nvmlDeviceGetPciInfo": "d o",
    "nvmlDeviceGetPciInfo_v2": "d o",
    "nvmlDeviceGetPciInfo_v3": "d o",
    "nvmlDeviceGetPciInfoExt": "d v",
    "nvmlDeviceGetDriverModel": "d o4 o4",
    "nvmlDeviceGetDriverModel_v2": "d o4 o4",
    "nvmlDeviceGetDisplayMode": "d o",
    "nvmlDeviceGetDisplayActive": "d o",
    "nvmlDeviceGetNumaNodeId": "d o",
    "nvmlDeviceGetMemoryAffinity": "d n l8 -",
    "nvmlDeviceGetCpuAffinity": "d n l8",
    "nvmlDeviceGetCpuAffinityWithinScope": "d n l8 -",
    "nvmlDeviceOnSameBoard": "d h o",
    "nvmlDeviceGetGspFirmwareVersion": "d o",
    "nvmlDeviceGetGspFirmwareMode": "d o4 o4",
    "nvmlDeviceValidateInforom": "d",
    # memory
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": "d v",
    "nvmlDeviceGetRepairStatus": "d v",
    "nvmlDeviceGetMemoryInfo": "d o",
    "nvmlDeviceGetMemoryInfo_v2": "d v",
    "nvmlDeviceGetBAR1MemoryInfo": "d o",
    "nvmlDeviceGetDefaultEccMode": "d o",
    "nvmlDeviceGetMemoryErrorCounter": "d k k k o",
    "nvmlDeviceGetDetailedEccErrors": "d k k o",
    "nvmlDeviceGetSramEccErrorStatus": "d v",
    "nvmlDeviceGetRowRemapperHistogram": "d o",
    "nvmlDeviceGetRetiredPages": "d k c a8",
    "nvmlDeviceGetRetiredPages_v2": "d k c a8 a8",
    # readings that move
    "nvmlDeviceGetTemperature": "d k o",
    "nvmlDeviceGetTemperatureV": "d m0m4o",
    "nvmlDeviceGetMarginTemperature": "d v",
    "nvmlDeviceGetNumFans": "d o",
    "nvmlDeviceGetFanSpeed_v2": "d k o",
    "nvmlDeviceGetPowerManagementMode": "d o",
    "nvmlDeviceGetPerformanceState": "d o",
    "nvmlDeviceGetPowerState": "d o",
    "nvmlDeviceGetClock": "d k k o",
    "nvmlDeviceGetCurrentClocksEventReasons": "d o",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "d o",
    "nvmlDeviceGetSupportedClocksEventReasons": "d o",
    "nvmlDeviceGetSupportedClocksThrottleReasons": "d o",
    "nvmlDeviceGetViolationStatus": "d k o",
    "nvmlDeviceGetFieldValues": "d n f",
    # links
    "nvmlDeviceGetMaxPcieLinkGeneration": "d o",
    "nvmlDeviceGetNvLinkState": "d k o",
    "nvmlDeviceGetNvLinkErrorCounter": "d k k o",
    "nvmlDeviceGetNvLinkRemotePciInfo": "d k o",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": "d k o",
    "nvmlDeviceGetNvLinkRemoteDeviceType": "d k o",
    "nvmlDeviceGetGpuFabricInfo": "d o",
    "nvmlDeviceGetGpuFabricInfoV": "d v",
    "nvmlDeviceGetTopologyCommonAncestor": "d h o",
    "nvmlDeviceGetTopologyNearestGpus": "d k C aH",
    "nvmlDeviceGetP2PStatus": "d h k o",
    # processes
    "nvmlDeviceGetComputeRunningProcesses": "d c a16",
    "nvmlDeviceGetComputeRunningProcesses_v2": "d c a24",
    "nvmlDeviceGetComputeRunningProcesses_v3": "d c a24",
    "nvmlDeviceGetGraphicsRunningProcesses": "d c a16",
    "nvmlDeviceGetGraphicsRunningProcesses_v2": "d c a24",
    "nvmlDeviceGetGraphicsRunningProcesses_v3": "d c a24",
    "nvmlDeviceGetMPSComputeRunningProcesses": "d c a16",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": "d c a24",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": "d c a24",
    "nvmlDeviceGetRunningProcessDetailList": "d m0m4c8a40@16",
    "nvmlDeviceGetProcessUtilization": "d a32 c -",
    # MIG
    "nvmlDeviceGetMaxMigDeviceCount": "d o",
    "nvmlDeviceIsMigDeviceHandle": "d o",
    "nvmlDeviceGetMigDeviceHandleByIndex": "d k H",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "d H",
    "nvmlDeviceGetGpuInstanceId": "d o",
    "nvmlDeviceGetComputeInstanceId": "d o",
    "nvmlDeviceGetAttributes": "d o",
    "nvmlDeviceGetAttributes_v2": "d o",
    # events
    "nvmlDeviceGetSupportedEventTypes": "d o",
    # what engines do; samples are kept by nvml_gpm.h
    "nvmlDeviceGetEncoderUtilization": "d o4 o4",
    "nvmlDeviceGetDecoderUtilization": "d o4 o4",
    "nvmlDeviceGetGridLicensableFeatures_v4": "d o",
    "nvmlGpmQueryDeviceSupport": "d v",
    "nvmlGpmSampleGet": "d -",
    "nvmlGpmMigSampleGet": "d k -",
}


def _declared_shapes() -> dict[str, str]:
    """The shapes of the calls that the table of readings spells out."""
    shapes = {}
    for question, readings in by_question(READINGS):
        call = question.otherwise if isinstance(question, Field) else question
        if isinstance(call, Call):
            outputs = "s n" if call.gives == "text" else "o"
            if isinstance(call.place, int):
                outputs = " ".join(["o4"] * len(readings))
            shapes[call.function] = " ".join(["d", *["k"] * len(call.arguments), outputs])
    return shapes


SHAPES: dict[str, str] = {**_declared_shapes(), **_BY_HAND}

# What a call answers for a subject and a key that the machine has no answer for.
DEFAULT_CODES: dict[str, int] = {
    "nvmlDeviceGetHandleByIndex": INVALID_ARGUMENT,
    "nvmlDeviceGetHandleByIndex_v2": INVALID_ARGUMENT,
    "nvmlDeviceGetHandleByUUID": NOT_FOUND,
    "nvmlDeviceGetHandleByUUIDV": NOT_FOUND,
    "nvmlDeviceGetHandleByPciBusId": NOT_FOUND,
    "nvmlDeviceGetHandleByPciBusId_v2": NOT_FOUND,
    "nvmlDeviceGetHandleBySerial": NOT_FOUND,
    "nvmlSystemGetProcessName": NOT_FOUND,
    "nvmlDeviceGetMigDeviceHandleByIndex": NOT_FOUND,
    # NVML's return code for a GPU on which no process has used an engine since the given time.
    "nvmlDeviceGetProcessUtilization": NOT_FOUND,
    **dict.fromkeys(
        (
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetMaxClockInfo",
            "nvmlDeviceGetFanSpeed_v2",
            "nvmlDeviceGetNvLinkState",
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetTemperatureThreshold",
            "nvmlDeviceGetTotalEccErrors",
            "nvmlDeviceGetP2PStatus",
            "nvmlDeviceGetTopologyCommonAncestor",
        ),
        INVALID_ARGUMENT,
    ),
}

# These answer before nvmlInit (nvml.h).
_ANYTIME = ("nvmlInit", "nvmlSystemGetCudaDriverVersion", "nvmlSystemGetNVMLVersion")
_LOOK_UP = "nvmlDeviceGetHandleBy"
_WITHOUT_DEVICE = (_LOOK_UP, "nvmlDeviceGetCount", "nvmlDeviceDiscover", "nvmlDeviceRemove")
_CHANGING = re.compile(r"nvml\w*?(Set|Reset|Clear|Create|Destroy|Modify|Remove|Freeze)[A-Z]")

_NEEDS_DEVICE_FLAG, _ANYTIME_FLAG, _LOOK_UP_FLAG = 1, 2, 4
_MAX_STEPS = 8
_KINDS = {
    name: number
    for number, name in enumerate(
        ("k", "m", "h", "t", "o", "s", "H", "c", "a", "aH", "l", "f"),
        start=1,
    )
}
_WORD = re.compile(r"(aH|[a-zA-Z-])(\d*)(?:@(\d+))?")


@dataclass(frozen=True, slots=True)
class _Step:
    """One thing to do with one argument; see `struct step` in nvml_state.h."""

    kind: int
    argument: int
    other: int = 0
    indirect: bool = False
    size: int = 0
    offset: int = 0

    def pack(self) -> bytes:
        return struct.pack(
            "<BBBBII", self.kind, self.argument, self.other, self.indirect, self.size, self.offset
        )


def pack_functions(cost_ns: Callable[[str], int]) -> bytes:
    """The function table of the state file: default code, flags, cost and steps of each function."""
    return b"".join(_pack_function(name, cost_ns(name)) for name in exported_functions())


def is_look_up(function: str) -> bool:
    """Whether the call finds a GPU's handle: a fault of `*` spares it."""
    return function.startswith(_LOOK_UP)


def fills_a_struct(function: str) -> bool:
    """Whether the call fills a struct that comes with its version or other members in it."""
    return any(word.startswith(("v", "m")) for word in SHAPES.get(function, "").split())


def _pack_function(name: str, cost_ns: int) -> bytes:
    steps = _parse_shape(SHAPES.get(name, ""))
    packed = b"".join(step.pack() for step in steps).ljust(_MAX_STEPS * 12, b"\0")
    return struct.pack("<iHHQ", _default_code(name), _flags(name), len(steps), cost_ns) + packed


def _default_code(name: str) -> int:
    if name in DEFAULT_CODES:
        return DEFAULT_CODES[name]
    # A simulated machine stays as its scenario describes it: no caller may change it.
    if name not in SHAPES and _CHANGING.match(name):
        return NO_PERMISSION
    return VERSION_MISMATCH if "v" in SHAPES.get(name, "").split() else NOT_SUPPORTED


def _flags(name: str) -> int:
    needs_device = name.startswith("nvmlDevice") and not name.startswith(_WITHOUT_DEVICE)
    needs_device = needs_device or SHAPES.get(name, "").startswith("d")
    return (
        _NEEDS_DEVICE_FLAG * needs_device
        | _ANYTIME_FLAG * name.startswith(_ANYTIME)
        | _LOOK_UP_FLAG * is_look_up(name)
    )


def _parse_shape(shape: str) -> list[_Step]:
    """The steps of a shape, in the order of its words."""
    steps = []
    for argument, word in enumerate(shape.split()):
        for kind, number, address in _WORD.findall(word.replace("v", "m0o")):
            step = _parse_word(kind, int(number or 0), argument, len(word) > 1 and "m" in word)
            if step is not None and address:
                step = _Step(step.kind, argument, indirect=True, size=step.size, offset=int(address))
            if step is not None:
                steps.append(step)
    # How many elements there are comes first in the answer, whatever the order of the arguments.
    return sorted(steps, key=lambda step: step.kind == _KINDS["a"])


def _parse_word(kind: str, number: int, argument: int, in_struct: bool) -> _Step | None:
    if kind in ("d", "n", "-"):
        return None
    if kind in ("k", "K"):
        return _Step(_KINDS["k"], argument, size=4 if kind == "k" else 8)
    if kind == "m":
        return _Step(_KINDS["m"], argument, size=4, offset=number)
    if kind == "T":
        return _Step(_KINDS["t"], argument, offset=number)
    if kind in ("c", "C"):
        return _Step(_KINDS["c"], argument, size=int(kind == "C"), offset=number if in_struct else 0)
    neighbour = {"s": argument + 1, "l": argument - 1, "f": argument - 1}.get(kind, 0)
    return _Step(_KINDS[kind], argument, neighbour, size=number)
