"""The instant checks over a snapshot: the basis of STATE in `gpudiag list` and of the bare `gpudiag`."""

from collections.abc import Iterable

from gpudiag.checks.on_gpus import GPU_CHECKS
from gpudiag.checks.registry import Check
from gpudiag.checks.runner import run_checks, verdict
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.finding import Outcome
from gpudiag.model.history import KnownGpus
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.report import Report


def judge_snapshot(
    snapshot: Snapshot, known_gpus: Reading[KnownGpus] = NOT_ASKED, checks: Iterable[Check] = GPU_CHECKS
) -> Report:
    """The report of the instant checks on `snapshot`, without further readings.

    Without a GPU it is never PASS: that no GPU is missing from a machine without any proves nothing.
    """
    results = run_checks(Context(snapshot, known_gpus=known_gpus), checks)
    outcome = verdict(results)
    nothing_judged = outcome is Outcome.PASS and not snapshot.devices
    return Report(Outcome.ERROR if nothing_judged else outcome, results, snapshot)
