"""The documents there are, by schema name; imported only to read one or to make the schemas."""

import difflib
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.model.device import Snapshot
from gpudiag.model.event import RunEvent
from gpudiag.model.explanation import LogExplanation
from gpudiag.model.history import History
from gpudiag.model.job import HangReport, Job
from gpudiag.model.job_run import JobRun
from gpudiag.model.live import Live
from gpudiag.model.report import CollectiveReport, MergedReport, Report
from gpudiag.model.run import Run, RunEvents
from gpudiag.model.service import (
    DeviceDocument,
    ExplanationDocument,
    Findings,
    Processes,
    ServiceHealth,
    Session,
    Sources,
    Topology,
)
from gpudiag.model.timeline import Series, Timeline
from gpudiag.model.training import TrainingReport

_OF_SERVICE: tuple[Any, ...] = (
    Live, DeviceDocument, Processes, Topology, Sources, Findings, ExplanationDocument, ServiceHealth, Session,
    Run, RunEvents, Series, Timeline,
)  # fmt: skip
DOCUMENTS: dict[str, type] = {
    noun.SCHEMA: noun
    for noun in (
        Snapshot,
        Report,
        MergedReport,
        CollectiveReport,
        TrainingReport,
        RunEvent,
        History,
        LogExplanation,
        HangReport,
        Job,
        JobRun,
        *_OF_SERVICE,
    )
}


def noun_type(schema: str) -> type:
    """The dataclass of a schema name.

    Raises:
        UsageError: the name is unknown; the nearest known one is given.
    """
    if schema in DOCUMENTS:
        return DOCUMENTS[schema]
    nearest = difflib.get_close_matches(schema, DOCUMENTS, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(DOCUMENTS)}"
    raise UsageError(f"this gpudiag does not know documents of schema {schema!r}", hint=hint)
