"""The instant checks over a snapshot: what STATE in `gpudiag list` and the bare `gpudiag` rest on."""

from gpudiag.checks import BUILTIN
from gpudiag.checks.registry import Level
from gpudiag.checks.runner import run_checks, verdict
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.report import Report


def judge_snapshot(snapshot: Snapshot, expected_gpus: Reading[int] = NOT_ASKED) -> Report:
    """The report of the instant checks; it takes no reading of its own."""
    checks = tuple(check for check in BUILTIN if check.level is Level.INSTANT)
    results = run_checks(Context(snapshot, expected_gpus=expected_gpus), checks)
    return Report(verdict(results), results, snapshot)
