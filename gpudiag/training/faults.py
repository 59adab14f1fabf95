"""Faults that `--inject` puts into a training: in a rank's process, or in the training itself."""

import re
import sys
from collections.abc import Mapping
from types import MappingProxyType

from gpudiag.errors import UsageError
from gpudiag.ranks.inject import Fault, parse_fault
from gpudiag.training.training_job import TrainingFault

NOSYNC = "nosync"  # at one step the gradients are not averaged
SUMGRAD = "sumgrad"  # they are summed, not averaged
SAMEDATA = "samedata"  # every rank reads the shard of rank 0
NOSET_EPOCH = "noset_epoch"  # every epoch has the order of the first
BADINIT = "badinit"  # rank 0's start is not broadcast
ONEBIAS = "onebias"  # one bias is left out of the averaging
NAN = "nan"  # one rank's samples hold a NaN
UNEVEN = "uneven"  # the last rank has one batch less

# The syntax of each.
_FORMS: Mapping[str, str] = MappingProxyType(
    {
        NOSYNC: "nosync:STEP",
        SUMGRAD: "sumgrad",
        SAMEDATA: "samedata",
        NOSET_EPOCH: "noset_epoch",
        BADINIT: "badinit",
        ONEBIAS: "onebias",
        NAN: "nan:RANK@STEP",
        UNEVEN: "uneven",
    }
)
_PATTERN = re.compile(
    r"(?P<kind>[a-z_]+)(?::(?P<rank>[0-9]{1,6}(?=@)))?(?:[:@](?P<step>[0-9]{1,6}))?", re.ASCII
)
_OOM = re.compile(r"oom:[0-9]{1,6}")
_OOM_STEP = 1  # `oom:RANK` names no step: the second one, when training has begun

GRADIENT_FAULTS = frozenset((NOSYNC, SUMGRAD, ONEBIAS))

EXAMPLES = (
    "write it as nosync:3, sumgrad, samedata, noset_epoch, badinit, onebias, nan:1@3, uneven, slow:1:50, "
    "kill:1@3, stop:1@3 or oom:1"
)


def parse_training_fault(text: str, workers: int, steps: int) -> TrainingFault | Fault:
    """The fault that `text` asks for, of the training or a rank's process. Raises UsageError: none."""
    text = text.strip()
    match = _PATTERN.fullmatch(text)
    if match is None or match["kind"] not in _FORMS:
        return _parse_process_fault(text, workers)
    kind, rank, step = match["kind"], match["rank"], match["step"]
    form = _FORMS[kind]
    if ("RANK" in form) != (rank is not None) or ("STEP" in form) != (step is not None):
        raise UsageError(f"--inject {text}: write it as {form}", hint=EXAMPLES)
    if rank is not None and int(rank) >= workers:
        raise UsageError(
            f"--inject {text}: there is no rank {rank} among {workers} ranks",
            hint=f"ranks are counted from 0 to {workers - 1}",
        )
    if step is not None and int(step) >= steps:
        raise UsageError(
            f"--inject {text}: there is no step {step} among {steps} verified steps",
            hint=f"steps are counted from 0 to {steps - 1}; --steps sets their number",
        )
    return TrainingFault(kind, text, None if rank is None else int(rank), None if step is None else int(step))


def _parse_process_fault(text: str, workers: int) -> Fault:
    from dataclasses import replace

    whole = f"{text}@{_OOM_STEP}" if _OOM.fullmatch(text) else text
    try:
        parse_fault(whole, sys.maxsize)  # how it is written, whichever ranks there are
    except UsageError as error:
        raise UsageError(error.message, hint=EXAMPLES) from None
    return replace(parse_fault(whole, workers), specification=text)
