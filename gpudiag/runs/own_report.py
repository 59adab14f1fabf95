"""A run over several machines leaves its report on each of them: the loss of one loses nothing."""

import hashlib
import os
from pathlib import Path

from gpudiag.errors import GpudiagError
from gpudiag.model.codec import dumps
from gpudiag.model.report import CollectiveReport
from gpudiag.model.training import TrainingReport
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.runs.output import write_document
from gpudiag.store.state_folder import state_directory

_KEPT = 64  # reports; the oldest go


def keep_own_report(
    report: CollectiveReport | TrainingReport, environment: RankEnvironment | None
) -> Path | None:
    """Where this machine's copy of the report is; None where the run was on one machine, or another process has it.

    The processes of a launch write one copy for each machine. All hosts may share the folder: the name has the rank.

    Raises:
        GpudiagError: it could not be written.
    """
    if environment is None or environment.on_one_machine or environment.local_rank != 0:
        return None
    folder = state_directory() / "reports"
    kind = report.SCHEMA.partition("/")[0].rpartition(".")[2]
    launch = hashlib.sha256(environment.run_key.encode()).hexdigest()[:12]
    path = folder / f"{kind}-{launch}-rank{environment.rank}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GpudiagError(f"cannot write to {folder}: {error.strerror or error}") from error
    write_document(path, dumps(report) + "\n")
    _forget_old(folder)
    return path


def _forget_old(folder: Path) -> None:
    dated: list[tuple[float, Path]] = []
    for path in folder.glob("*.json"):
        try:
            dated.append((os.stat(path).st_mtime, path))
        except FileNotFoundError:  # another process has removed it
            continue
    for _, path in sorted(dated)[:-_KEPT]:
        path.unlink(missing_ok=True)
