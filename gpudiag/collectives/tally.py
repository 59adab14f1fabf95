"""What one rank has found out about the case that it is working on."""

from dataclasses import dataclass, field

from gpudiag.collectives.results import RankCase


@dataclass(slots=True)
class Tally:
    """Times and verification of one case so far; `freeze` is what the rank tells about it."""

    operations: int = 0
    times_nanoseconds: list[int] = field(default_factory=list)
    entered_nanoseconds: list[int] = field(default_factory=list)
    isolated_nanoseconds: list[int] = field(default_factory=list)
    verified_iterations: int = 0
    wrong_elements: int = 0
    described_buffers: int = 0
    measure_seconds: float = 0.0
    verify_seconds: float = 0.0

    def freeze(self, rank: int, case: int) -> RankCase:
        """The finished tally of that rank and case."""
        return RankCase(
            rank=rank,
            case=case,
            operations=self.operations,
            times_nanoseconds=tuple(self.times_nanoseconds),
            entered_nanoseconds=tuple(self.entered_nanoseconds),
            isolated_nanoseconds=tuple(self.isolated_nanoseconds),
            verified_iterations=self.verified_iterations,
            wrong_elements=self.wrong_elements,
            measure_seconds=self.measure_seconds,
            verify_seconds=self.verify_seconds,
        )
