"""The recipe of `gpudiag train --advise`: look at the machine, say which strategy suits it, run nothing."""

import re
import socket

from gpudiag.errors import UsageError
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing
from gpudiag.model.training import TrainingReport
from gpudiag.probe.inventory import take_snapshot
from gpudiag.runs.placement import Placement
from gpudiag.runs.train import describe_machine
from gpudiag.training.advise import advise

DEFAULT_PARAMETERS = "1B"
_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMBT]?)", re.IGNORECASE)
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def advise_strategy(parameters: str | None) -> TrainingReport:
    """The advice for a model of so many parameters, such as `7B`; by default of a thousand million.

    Raises:
        UsageError: the size is not a number.
    """
    size = parse_parameters(parameters or DEFAULT_PARAMETERS)
    snapshot = take_snapshot()
    memory = [
        device.memory_total_bytes
        for device in snapshot.devices
        if not isinstance(device.memory_total_bytes, Missing)
    ]
    here = Placement("nccl" if memory else "gloo", max(1, len(memory)), 0, devices=snapshot.devices)
    return TrainingReport(
        outcome=Outcome.PASS,
        host=socket.gethostname(),
        strategies=(),
        findings=(),
        advice=advise(size, memory),
        simulated=snapshot.simulated,
        machine=describe_machine(here),
    )


def parse_parameters(text: str) -> int:
    """The number that `350M` or `7B` stands for.

    Raises:
        UsageError: it is none.
    """
    match = _PATTERN.fullmatch(text.strip())
    size = 0.0 if match is None else float(match[1]) * _FACTORS[match[2].upper()]
    if size < 1:
        raise UsageError(f"--parameters {text} is not a number of parameters", hint="write it as 350M or 7B")
    return int(size)
