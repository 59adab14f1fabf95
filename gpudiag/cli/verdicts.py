"""The exit status of a verdict, for every command that judges."""

from gpudiag.errors import ExitStatus
from gpudiag.model.finding import Outcome

# SKIP is not in it: it is a check's outcome and never a verdict.
EXIT_STATUSES = {
    Outcome.PASS: ExitStatus.PASS,
    Outcome.WARN: ExitStatus.PASS,
    Outcome.FAIL: ExitStatus.FAIL,
    Outcome.ERROR: ExitStatus.ERROR,
}
