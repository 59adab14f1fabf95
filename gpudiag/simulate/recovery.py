"""What the driver asks for after an Xid: NVML's recovery action, and Xid 154 behind it in the kernel log."""

from dataclasses import replace

from gpudiag.reference.vocabulary import ACTIONS_IN_XID_154, RECOVERY_ACTIONS
from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint, KernelLine
from gpudiag.simulate.kernel_log import xid_line

XID_RECOVERY_ACTION = 154
# The Xids behind which a driver logs an Xid 154, by the first branch that does (NVIDIA's Xid catalog, column
# "Xid 154 linkage"), where the catalog says that a reset clears them; a GPU off the bus wants a reboot, as
# public kernel logs of 2026 have it. Those that end with the job (94) or with a remapped row (63) ask for nothing here.
_RESET_SINCE = {48: 565, 62: 565, 64: 565, 74: 565, 95: 565, 110: 565, 120: 565, 136: 565, 109: 570, 143: 575}
_REBOOT_SINCE = {79: 565}
_UNKNOWN_TO_DRIVER = ("not_supported", "function_not_found")


def ask_for_recovery(blueprint: Blueprint) -> Blueprint:
    """This machine with what its driver asks for after the Xids of its GPUs; an older driver asks for nothing."""
    for gpu in blueprint.listed():
        cause, action = _request(gpu, int(blueprint.nvml.driver_version.split(".")[0]))
        if cause is not None:
            line = xid_line(
                gpu, XID_RECOVERY_ACTION, _age_seconds(blueprint, gpu, cause), recovery_text(action)
            )
            blueprint = blueprint.change_gpus(
                lambda other: _asking(other, action) if other is gpu else other  # noqa: B023
            ).log(line)
    return blueprint


def recovery_text(action: str) -> str:
    """What Xid 154 says for that action."""
    number = RECOVERY_ACTIONS.index(action)
    return f"GPU recovery action changed from 0x0 (None) to 0x{number:x} ({ACTIONS_IN_XID_154[action]})"


def _request(gpu: GpuBlueprint, branch: int) -> tuple[int | None, str]:
    """The Xid because of which the driver asks for something, and what; None: it asks for nothing."""
    codes = gpu.gpu.xid_codes
    unknown = gpu.gpu.missing.get("recovery_action") in _UNKNOWN_TO_DRIVER
    if unknown or XID_RECOVERY_ACTION in codes:
        return None, "none"
    for since, action in ((_REBOOT_SINCE, "node_reboot"), (_RESET_SINCE, "gpu_reset")):
        asking = [code for code in codes if since.get(code, branch + 1) <= branch]
        if asking:
            return asking[-1], action
    return None, "none"


def _asking(gpu: GpuBlueprint, action: str) -> GpuBlueprint:
    told = replace(gpu, gpu=replace(gpu.gpu, xid_codes=(*gpu.gpu.xid_codes, XID_RECOVERY_ACTION)))
    return told.with_readings(recovery_action=action) if "recovery_action" in gpu.gpu.readings else told


def _age_seconds(blueprint: Blueprint, gpu: GpuBlueprint, code: int) -> float:
    """How long ago the Xid was logged, the last time."""
    start = xid_line(gpu, code, 0.0, "").text
    return min((line.age_seconds for line in blueprint.kernel_log if _is_xid(line, start)), default=0.0)


def _is_xid(line: KernelLine, start: str) -> bool:
    return line.text.startswith(start)
