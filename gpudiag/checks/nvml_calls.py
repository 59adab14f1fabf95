"""The check of NVML's return codes: a question that got an error for an answer was not answered."""

from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, judged
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import FailedCall, Snapshot
from gpudiag.model.evidence import Evidence, SourceSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing

CALL_FAILED = FindingKind(
    code="nvml.call_failed",
    outcome=Outcome.ERROR,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.HOST,
    meaning="NVML answered with an error where it should have answered, so that part of the GPU was not looked at.",
    remedy="Compare with `nvidia-smi -q`, and look at `dmesg` (Xid, NVRM); if it stays, reset the GPU or reload the "
    "driver. An error that a healthy GPU gives under your driver is worth a report to gpudiag.",
    basis=Basis(
        reads="the return code of every NVML call",
        limit="success, or that this GPU has none, this driver does not know, this user may"
        " not (nvmlReturn_t)",
        look_also=("nvidia-smi -q", "dmesg | grep -e NVRM -e Xid", "gpudiag list --wide", "gpu.not_read"),
    ),
)
_MAX_NAMED = 3
# Questions about two GPUs: one that is lost or hangs makes them fail on the other.
_ABOUT_TWO = ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor")


@check(
    "source.nvml_calls",
    title="no call into NVML fails",
    needs=("nvml",),
    reports=(CALL_FAILED,),
    readings=("the return code of every NVML call",),
)
def nvml_calls(context: Context) -> Judgement:
    """An ERROR finding for each GPU, and for the library, with calls that failed; a silent GPU is told elsewhere."""
    snapshot = context.snapshot
    found = [_failed(snapshot, index, calls) for index, calls in _by_gpu(snapshot).items()]
    return judged(*(finding for finding in found if finding is not None))


def _by_gpu(snapshot: Snapshot) -> dict[int | None, list[FailedCall]]:
    silent = any(isinstance(device.responding, Missing) for device in snapshot.devices)
    calls: dict[int | None, list[FailedCall]] = {}
    for call in snapshot.failed_calls:
        if not (silent and call.function in _ABOUT_TWO):
            calls.setdefault(call.nvml_index, []).append(call)
    return calls


def _failed(snapshot: Snapshot, index: int | None, calls: list[FailedCall]) -> Finding | None:
    more = f" and {len(calls) - _MAX_NAMED} more" if len(calls) > _MAX_NAMED else ""
    told = ", ".join(f"{call.function} ({call.words})" for call in calls[:_MAX_NAMED]) + more
    evidence = tuple(
        Evidence("failed_call", f"{call.function}: {call.words}", source="NVML") for call in calls
    )
    if index is None:
        return CALL_FAILED.finding(
            SourceSubject("nvml", snapshot.host), f"NVML answers with an error: {told}", *evidence
        )
    device = next((device for device in snapshot.devices if device.id.nvml_index == index), None)
    if device is None or isinstance(device.responding, Missing):
        return None  # gpu.lost, gpu.hung
    message = f"{name_device(device)}: NVML answers with an error: {told}"
    return CALL_FAILED.finding(device_subject(snapshot, device), message, *evidence)
