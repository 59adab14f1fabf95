"""Context: all that a check may see."""

from dataclasses import dataclass, field

from gpudiag.model.device import Snapshot
from gpudiag.model.measure import Measures
from gpudiag.model.reading import NOT_ASKED, Reading


@dataclass(frozen=True, slots=True)
class Context:
    """What was gathered, and what is expected: the only input of a check."""

    snapshot: Snapshot
    measures: Measures = field(default_factory=Measures)
    expected_gpus: Reading[int] = NOT_ASKED  # what the user said, by --expect-gpus
