"""What an Xid or SXid of the kernel log is to a failed job: its cause, a symptom, or broken hardware."""

from gpudiag.checks.gpu.xid_faults import outcome_of
from gpudiag.explain.topics import explain_sxid, explain_xid
from gpudiag.model.explanation import Explanation, Role
from gpudiag.model.finding import Outcome
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.reference.xid import SXidClass, XidKind, sxids, xids


def explain_event(event: KernelEvent) -> tuple[Explanation, Role] | None:
    """The explanation of an Xid or an SXid, and what it is to the job; None for another event."""
    if event.xid_code is not None:
        return explain_xid(event.xid_code), _xid_role(event, event.xid_code)
    if event.sxid_code is not None:
        return explain_sxid(event.sxid_code), _sxid_role(event.sxid_code)
    return None


def _xid_role(event: KernelEvent, code: int) -> Role:
    xid = xids().get(code)
    if xid is None:
        return Role.CAUSE
    if xid.kind in (XidKind.SYMPATHETIC, XidKind.INFORMATIONAL):
        return Role.SYMPTOM
    outcome = outcome_of(event)
    if outcome is Outcome.PASS and xid.kind is XidKind.HARDWARE:
        return Role.SYMPTOM  # an NVLink 5 error that the driver calls nonfatal
    return Role.HARDWARE if outcome is Outcome.FAIL else Role.CAUSE


def _sxid_role(code: int) -> Role:
    sxid = sxids().get(code)
    if sxid is None or sxid.sxid_class is SXidClass.DISTURBING:
        return Role.CAUSE
    return Role.SYMPTOM if sxid.sxid_class is SXidClass.NOTE else Role.HARDWARE
