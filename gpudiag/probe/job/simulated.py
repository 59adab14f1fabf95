"""The jobs that stand still on a simulated machine, by its scenario: looks at real jobs, recorded."""

import json
import os
from pathlib import Path

from gpudiag.model.codec import decode
from gpudiag.model.job import Job
from gpudiag.probe.start import SIMULATED

JOBS_FILE = "GPUDIAG_SIMULATED_JOBS"


def read_simulated_jobs() -> tuple[Job, ...] | None:
    """The jobs of the simulated machine.

    It is None where its scenario has none, so that jobs are this machine's own.
    """
    path = os.environ.get(JOBS_FILE) if os.environ.get(SIMULATED) else None
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return tuple(decode(Job, one) for one in json.loads(text))
