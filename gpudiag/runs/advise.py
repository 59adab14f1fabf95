"""The recipe of `gpudiag train --advise`: look at the machine, say which strategy suits it, run nothing."""

import re

from gpudiag.checks.traces import gpu_traces
from gpudiag.errors import SourceFailedError, UsageError
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing
from gpudiag.model.training import TrainingReport
from gpudiag.probe.inventory import take_snapshot
from gpudiag.runs.placement import Placement
from gpudiag.runs.train import describe_machine
from gpudiag.training.advise import DEFAULT_PARAMETERS, advise_for_devices

_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMBT]?)", re.IGNORECASE)
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def advise_strategy(parameters: str | None) -> TrainingReport:
    """The advice for a model of so many parameters, such as `7B`; by default of a thousand million.

    Raises:
        UsageError: the size is not a number.
        SourceFailedError: there is a trace of a GPU, and none can be read.
    """
    size = DEFAULT_PARAMETERS if parameters is None else parse_parameters(parameters)
    snapshot = take_snapshot()
    devices = tuple(
        device for device in snapshot.devices if not isinstance(device.memory_total_bytes, Missing)
    )
    traces = gpu_traces(snapshot)
    if traces and not devices:
        why = snapshot.source("nvml").reason or "NVML gives no memory size"
        raise SourceFailedError(
            f"a GPU is here ({traces[0].text}), and nothing is known of it: {why}",
            hint="see `gpudiag` and `gpudiag list --sources all`",
        )
    here = Placement(
        "nccl" if devices else "gloo", max(1, len(devices)), 0, devices=devices, snapshot=snapshot
    )
    return TrainingReport(
        outcome=Outcome.PASS,
        host=snapshot.host,
        strategies=(),
        findings=(),
        advice=advise_for_devices(size, devices),
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
