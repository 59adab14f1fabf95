"""One call into NVML that hangs, or that fails, on one GPU; tools/walk_nvml.py walks all of them."""

from tests.scenarios.kinds.trial import Kind, Trial

_MACHINES = ("h100x8", "a100x8", "b200x8", "l40sx8")
_HANGING = (
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetBoardPartNumber",
)
_FAILING = (*_HANGING[:2], "nvmlDeviceGetSerial", "nvmlDeviceGetUUID")
_CALL = '\n[[gpus.1.calls]]\ncall = "{call}"\n{way}\n'

KINDS = (
    Kind(
        "a call into NVML that never returns",
        (
            *(
                Trial(call, machine, ("gpu.hung 1",), faults=f"hang-call:1:{call}")
                for machine, call in zip(_MACHINES, _HANGING, strict=True)
            ),
            Trial("the look-up of a handle", "h100x8", ("gpu.hung 3",), faults=f"hang-call:3:{_HANGING[2]}"),
            *(
                Trial("a slow call", machine, differs=_CALL.format(call=call, way="delay_seconds = 0.01"))
                for machine, call in zip(_MACHINES, _HANGING, strict=True)
            ),
        ),
    ),
    Kind(
        "a call into NVML that fails",
        (
            *(
                Trial(
                    call, machine, ("nvml.call_failed 1",), differs=_CALL.format(call=call, way="code = 999")
                )
                for machine, call in zip(_MACHINES, _FAILING, strict=True)
            ),
            *(
                Trial(
                    "not supported", machine, differs=_CALL.format(call="nvmlDeviceGetSerial", way="code = 3")
                )
                for machine in _MACHINES
            ),
        ),
    ),
)
