"""The documents of a hub: one machine that answers and one that does not."""

from gpudiag.model.hub import (
    AnswerState,
    HubCounts,
    HubDocument,
    HubEvent,
    HubEvents,
    HubMachine,
    MachineFinding,
    MachineGpu,
    MachineReport,
)
from tests.unit.model.nouns import NOT_SUPPORTED, TAKEN_AT

_GPU = MachineGpu(
    "GPU-1", 0, "NVIDIA H100 80GB HBM3", "fail", 97, 1 << 34, 80 << 30, NOT_SUPPORTED, 412.5, "165"
)
_LOST = MachineFinding("gpu.lost", "fail", "GPU 3 is lost", "drain it", blocks_jobs=True)
_REPORT = MachineReport(
    TAKEN_AT, "a7", "h100x8+lost:3", "0.1.0", "580.159.04", "fail", "GPU 3 is lost", (_GPU,), ("ann",),
    ("slurm 4711",), 1, (_LOST,),
    ("topology",),
)  # fmt: skip
_ANSWERS = HubMachine(
    "a7",
    "http://a7:4783/",
    AnswerState.ANSWERS,
    TAKEN_AT,
    None,
    "fail",
    TAKEN_AT,
    TAKEN_AT,
    -2.0,
    ("an older version",),
    _REPORT,
)
_SILENT = HubMachine(
    "b2",
    "http://b2:4783/",
    AnswerState.SILENT,
    TAKEN_AT,
    "connection refused",
    "error",
    None,
    None,
    None,
    (),
    None,
)
HUB_EXAMPLES = (
    HubDocument(
        7,
        TAKEN_AT,
        "login1",
        "0.1.0",
        HubCounts(2, 0, 0, 1, 1, 1, 8, 7),
        ("its clock is not set",),
        (_ANSWERS, _SILENT),
    ),
    HubEvents((HubEvent(1, TAKEN_AT, "b2", "silent", "b2 does not answer", "error"),)),
)
