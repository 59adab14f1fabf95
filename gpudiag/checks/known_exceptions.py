"""What an exception is known to mean: the same catalogue of failures that `gpudiag explain` has."""

from collections.abc import Sequence
from dataclasses import replace

from gpudiag.model.evidence import Evidence
from gpudiag.model.explanation import Role
from gpudiag.model.finding import Finding
from gpudiag.reference.failures import Failure, failures

_LIKELIEST_FIRST = (Role.HARDWARE, Role.CAUSE, Role.SYMPTOM)


def find_meaning(exception: str, text: str, frames: Sequence[str] = ()) -> Failure | None:
    """The known failure that shows as this exception with this text, raised in those frames; None for an unknown one.

    What only repeats another failure, or could be any, is no meaning of an exception by itself.
    """
    lines = [f"{exception}: {text.partition(chr(10))[0]}", *text.splitlines()[1:]]
    raised = "\n".join(frames)
    found = [
        failure
        for failure in failures().values()
        if not failure.generic and any(_shows(failure, line, raised) for line in lines)
    ]
    return min(found, key=lambda failure: _LIKELIEST_FIRST.index(failure.role), default=None)


def with_meaning(finding: Finding, meaning: Failure) -> Finding:
    """The finding with what its exception is known to mean, who must act, and how it is mended."""
    fact = Evidence("meaning", f"{meaning.title}: {meaning.cause}", source=f"gpudiag explain {meaning.id}")
    return replace(finding, evidence=(*finding.evidence, fact), remedy=meaning.mend, owner=meaning.owner)


def _shows(failure: Failure, line: str, frames: str) -> bool:
    return any(
        pattern.search(line) is not None and pattern.is_raised_by(frames) for pattern in failure.patterns
    )
