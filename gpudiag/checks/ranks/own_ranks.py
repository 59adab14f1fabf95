"""Findings on ranks of gpudiag's own tests: what a limit or a full GPU keeps from work is not tested."""

import re
from collections.abc import Iterable

from gpudiag.checks.ranks import incident_kinds as kinds
from gpudiag.checks.ranks.incidents import judge_incidents
from gpudiag.checks.ranks.localisation import is_localised
from gpudiag.model.finding import Finding
from gpudiag.model.measure import CollectiveMeasurement
from gpudiag.reference.shortages import find_shortage

# Of torch's allocator, of CUDA (also in NCCL's words: Cuda failure 2 'out of memory'), and of cuBLAS.
_NO_GPU_MEMORY = re.compile(r"(CUDA|Cuda).{0,40}out of memory|CUBLAS_STATUS_ALLOC_FAILED")


def judge_ranks(measurement: CollectiveMeasurement) -> tuple[Finding, ...]:
    """One finding per incident of a rank, the earliest first; corrupted data is judged elsewhere."""
    complete = len(measurement.results) == measurement.sizes_planned
    incidents = tuple(one for one in measurement.incidents if not is_localised(one, measurement))
    return without_shortages(judge_incidents(incidents, complete=complete))


def without_shortages(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings, with a rank of our own tests kept from work by a limit or full GPU as untested.

    Of a user's script it stays the script's failure.
    """
    return tuple(_shortage_in(finding) or finding for finding in findings)


def _shortage_in(finding: Finding) -> Finding | None:
    """The finding as the shortage that it is; None where it is another failure."""
    if finding.code == kinds.RANK_RAISED.code and _NO_GPU_MEMORY.search(_message_of(finding)):
        return kinds.RANK_OUT_OF_GPU_MEMORY.finding(finding.subject, finding.message, *finding.evidence)
    return host_shortage_in(finding)


def host_shortage_in(finding: Finding) -> Finding | None:
    """The end of a rank of our own tests as a shortage of the host; None for another failure."""
    if finding.code not in (kinds.RANK_RAISED.code, kinds.RANK_DIED.code, kinds.RANK_START_FAILED.code):
        return None
    if not any(
        find_shortage(words) for words in (finding.message, *(str(one.value) for one in finding.evidence))
    ):
        return None
    return kinds.RANK_SHORTAGE.finding(finding.subject, finding.message, *finding.evidence)


def _message_of(finding: Finding) -> str:
    return next((str(fact.value) for fact in finding.evidence if fact.name == "message"), finding.message)
