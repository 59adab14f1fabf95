"""The catalogue of findings: every code that gpudiag may report. docs/findings.md is written from it."""

from gpudiag.checks import BUILTIN
from gpudiag.checks.collective import COLLECTIVE_FINDINGS
from gpudiag.checks.fleet import VERSIONS_DIFFER
from gpudiag.checks.registry import FindingKind
from gpudiag.checks.training_kinds import TRAINING_FINDINGS


def finding_kinds() -> tuple[FindingKind, ...]:
    """Every kind once: those of the checks in run order, then those of runs on ranks, and of several machines."""
    declared = [kind for check in BUILTIN for kind in check.reports]
    kinds = {
        kind.code: kind for kind in (*declared, *COLLECTIVE_FINDINGS, *TRAINING_FINDINGS, VERSIONS_DIFFER)
    }
    return tuple(kinds.values())
