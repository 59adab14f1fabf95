"""After how long a standstill is reported, by the job's own rhythm."""

import re
from dataclasses import dataclass

from gpudiag.errors import UsageError
from gpudiag.model.job_run import StepTime
from gpudiag.model.reading import Missing, Reading
from gpudiag.units import parse_seconds

# Of the default rule. Twenty steps, because evaluations and checkpoints of some steps' length are common; a
# quarter of a minute at least, because a busy file system or a garbage collection takes seconds however short
# the steps are.
FACTOR = 20.0
LEAST_SECONDS = 15.0
# Without a rhythm yet: imports, a first step that compiles, data that is prepared.
UNKNOWN_SECONDS = 60.0
# With a factor of the user's own: what two looks at the ranks take.
LEAST_OF_FACTOR_SECONDS = 3.0
# A pause that ended by itself may well come again, a little longer.
LONGER_THAN_BEFORE = 1.5
# A rank that works while others wait for it is reported after so many limits: evaluation on one rank, a large
# checkpoint.
WORK_LIMITS = 6.0
_LONGEST_SECONDS = 24 * 3600.0
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdx])?")


@dataclass(frozen=True, slots=True)
class StallRule:
    """`factor` times the step and at least `least_seconds`, or `seconds` whatever the step."""

    factor: float = FACTOR
    seconds: float | None = None
    least_seconds: float = LEAST_SECONDS

    def limit_seconds(self, step: Reading[StepTime], longest_pause_seconds: float) -> float:
        """After how long a standstill is reported; `longest_pause_seconds`: of those that ended."""
        if self.seconds is not None:
            return self.seconds
        if isinstance(step, Missing):
            least = UNKNOWN_SECONDS
        else:
            least = max(self.least_seconds, self.factor * step.seconds)
        return max(least, LONGER_THAN_BEFORE * longest_pause_seconds)


def parse_stall_rule(text: str | None) -> StallRule:
    """The rule of `--stall-after`: `20` or `20x` the step, or `90s`. Raises UsageError: neither."""
    if text is None:
        return StallRule()
    match = _WRITTEN.fullmatch(text.strip())
    hint = "give a multiple of the job's own step, such as 20, or a time such as 90s"
    if match is None:
        raise UsageError(f"--stall-after {text}: neither a number of steps nor of seconds", hint=hint)
    is_time = match[2] not in (None, "x")
    number = parse_seconds(text) if is_time else float(match[1])
    least = LEAST_OF_FACTOR_SECONDS if is_time else 2.0
    if not least <= number <= _LONGEST_SECONDS:
        unit = " s" if is_time else " steps"
        raise UsageError(f"--stall-after {text}: at least {least:g}{unit}, at most a day", hint=hint)
    if is_time:
        return StallRule(seconds=number)
    return StallRule(factor=number, least_seconds=LEAST_OF_FACTOR_SECONDS)
