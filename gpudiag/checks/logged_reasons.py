"""Why the driver is not loaded or a GPU did not start: the reason is in the kernel log, beside a finding."""

from dataclasses import replace

from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import DeviceSubject, Evidence
from gpudiag.model.finding import Finding
from gpudiag.model.reading import Missing
from gpudiag.reference.kernel_words import kernel_words


def with_logged_reason(snapshot: Snapshot, finding: Finding) -> Finding:
    """The finding with the reason that the kernel log has for it and its remedy; unchanged where it has none.

    A line that names another GPU than the finding is not its reason.
    """
    if isinstance(snapshot.kernel_log, Missing):
        return finding
    reasons = {words.id: words for words in kernel_words() if finding.code in words.reason_of}
    own = finding.subject.bus_id if isinstance(finding.subject, DeviceSubject) else None
    lines = [
        event
        for event in snapshot.kernel_log
        if event.fault in reasons and (own is None or event.bus_id in (None, own))
    ]
    if not lines:
        return finding
    reason = reasons[lines[-1].fault or ""]
    line = Evidence("line", lines[-1].text, source="kernel log")
    facts = finding.evidence if line in finding.evidence else (*finding.evidence, line)
    explained = replace(finding, message=f"{finding.message}: {reason.title}", evidence=facts)
    return explained.with_remedy(reason.written_remedy)
