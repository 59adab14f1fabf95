"""Looks of ranks at themselves, as `gpudiag train --script` gets them."""

import re
from collections.abc import Sequence

from gpudiag.model.job import Awaited, Frame, ProcessLook, ThreadLook
from gpudiag.model.job_state import CallState, FlightRecord, RecordedCall
from gpudiag.model.reading import NOT_ASKED
from gpudiag.model.script import OWN_STACKS, OwnLook

SITE = "/opt/venv/lib/python3.12/site-packages"
ALL_REDUCE = f"{SITE}/torch/distributed/distributed_c10d.py:3252 in all_reduce"
IN_BACKWARD = f"{SITE}/torch/autograd/graph.py:979 in _engine_run_backward"
NEXT_BATCH = f"{SITE}/torch/utils/data/dataloader.py:1243 in _try_get_data"


def own_look(
    place: str,
    *library: str,
    text: str = "",
    syscall: str = "",
    awaited: Awaited | None = None,
    work: str | None = None,
    waits_for: str = "",
    uses_gpu: bool = False,
    batches: int = 0,
    steps: int = 0,
    pid: int = 77,
    record: FlightRecord | None = None,
) -> OwnLook:
    """The look of a rank in the user's line `FILE:LINE in FUNCTION`, which is in the library's frames,
    innermost first.
    """
    frames = (*_frames(library), *_frames((place,), text))
    main = ThreadLook(pid, "MainThread", "S", 1.0, syscall=syscall, awaited=awaited, frames=frames)
    look = ProcessLook(0.0, pid, "S", 1.0, threads=(main,), stacks=OWN_STACKS)
    return OwnLook(look, work, waits_for, uses_gpu, batches, steps, record)


def own_record(*operations: str, ended: int) -> FlightRecord:
    """The flight record of a rank that has launched these collectives of the default group.

    So many have ended.
    """
    calls = (
        RecordedCall(n, "0", "default_pg", "gloo", name, n + 1, False, CallState.SCHEDULED, n < ended)
        for n, name in enumerate(operations)
    )
    return FlightRecord(NOT_ASKED, "2.10", "", (), (), tuple(calls), "the rank's flight recorder")


def _frames(places: Sequence[str], text: str = "") -> tuple[Frame, ...]:
    parts = [re.fullmatch(r"(.*):(\d+) in (.*)", place) for place in places]
    return tuple(Frame(part[1], part[3], int(part[2]), text) for part in parts if part is not None)
