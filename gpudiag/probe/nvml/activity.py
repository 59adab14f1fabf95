"""GPU activity between two samples: engines and links by NVML's GPM, NVLink traffic by its counters.

Only `Ask.repeated` has two samples. GPM needs Hopper, and no part of a virtual GPU
(NVIDIA/dcgm-exporter#701). In a container it may be refused at any time (NVIDIA/DCGM#214): then it is
retried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from gpudiag.probe.nvml.ask import Ask, DeviceSheet, field_value, known, reason_of_code
from gpudiag.probe.sheet import ERROR, NOT_ASKED, NOT_SUPPORTED, Absent
from gpudiag.reference.declaration import Activity, Declared
from gpudiag.units import KIB

# A shorter window measures noise; in a longer one, as after a pause, the mean shows nothing of the present.
_SHORTEST_WINDOW_SECONDS = 0.5
_LONGEST_WINDOW_SECONDS = 30.0
_DECIMALS = 3  # of a percentage
_FIRST_LOOK = "a mean between two looks, of which this was the first"
# Of nvmlReturn_t, without those that report the GPU as gone: a metric that is refused is no fault of the GPU.
_REFUSALS = [code for code in range(1000) if code not in (15, 16, 28)]
# NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB; this scope means the sum over all links (nvml.h).
_ALL_LINKS = 0xFFFFFFFF
TRAFFIC_FIELDS = ((138, _ALL_LINKS), (139, _ALL_LINKS))
_TRAFFIC = (
    "nvlink_transmitted_bytes",
    "nvlink_received_bytes",
    "nvlink_throughput_bytes_per_second",
)


class _Window:
    """A sample of the counters that GPM reads, room for the next one, and what both gave."""

    def __init__(self, pynvml: Any) -> None:
        self.pynvml = pynvml
        self.last = pynvml.nvmlGpmSampleAlloc()
        self.next = pynvml.nvmlGpmSampleAlloc()
        self.taken_at: float | None = None
        self.of: object = None  # who the sample is of: the number of a GPU instance is reused
        self.answers: list[float | Absent] | None = None

    def free(self) -> None:
        for sample in (self.last, self.next):
            self.pynvml.nvmlGpmSampleFree(sample)


def read_activity(ask: Ask, sheet: DeviceSheet, readings: Sequence[Declared]) -> None:
    """Fill in the GPU's activity since the last look: a call for the sample, and one for all metrics."""
    if not ask.repeated:
        return  # they stay NOT_ASKED
    names = [one.name for one in readings]
    # On a sheet of its own: another thread may look at the GPU's at any time.
    metrics = DeviceSheet()
    metrics.lost = sheet.lost
    metrics.read_together(
        names, _answers, ask, "gpm", ask.handle, _sample_of_gpu(ask), questions_of(readings)
    )
    sheet.lost = metrics.lost
    _copy(names, metrics, sheet.values, sheet.missing)


def add_instance_activity(ask: Ask, sheet: DeviceSheet, readings: Sequence[Declared]) -> None:
    """Add to each MIG instance the activity of its GPU instance since the last look."""
    instances = sheet.values.get("mig_instances")
    if not instances or not ask.repeated or sheet.lost is not None:
        return
    together: dict[int, list[dict[str, Any]]] = {}
    for instance in instances:
        if "gpu_instance_id" in instance:
            together.setdefault(instance["gpu_instance_id"], []).append(instance)
    names = [one.name for one in readings]
    for number, members in together.items():
        of_instance = DeviceSheet()
        identity = tuple((member.get("uuid"), member.get("name")) for member in members)
        take = _sample_of_instance(ask, number)
        of_instance.read_together(
            names, _answers, ask, ("gpm", number), identity, take, questions_of(readings)
        )
        for member in members:
            missing: dict[str, tuple[str, str]] = {}
            _copy(names, of_instance, member, missing)
            member["missing"] |= {name: reason for name, (reason, _) in missing.items()}
            member["missing_detail"] |= {name: detail for name, (_, detail) in missing.items() if detail}


def _copy(
    names: Sequence[str], metrics: DeviceSheet, values: dict[str, Any], missing: dict[str, tuple[str, str]]
) -> None:
    """Take over the answers: a value or the reason for none, each metric's own."""
    for name in names:
        answer = metrics.values.get(name)
        if isinstance(answer, Absent):
            missing[name] = (answer.reason, answer.detail)
        elif name in metrics.missing:
            missing[name] = metrics.missing[name]
        else:
            values[name] = answer


def release_samples(ask: Ask) -> None:
    """Free the samples that were taken through this handle, which is not asked again."""
    for key, window in list(ask.kept.items()):
        if isinstance(window, _Window):
            del ask.kept[key]
            try:
                window.free()
            except Exception:  # noqa: BLE001, S112 - of a library that has gone there is nothing to free
                continue


def questions_of(readings: Sequence[Declared]) -> list[Activity]:
    """The questions of readings that GPM answers."""
    return [one.question for one in readings if isinstance(one.question, Activity)]


def _sample_of_gpu(ask: Ask) -> Callable[[Any], None]:
    return lambda sample: ask.allowing(_REFUSALS, "nvmlGpmSampleGet", sample)


def _sample_of_instance(ask: Ask, number: int) -> Callable[[Any], None]:
    return lambda sample: ask.allowing(_REFUSALS, "nvmlGpmMigSampleGet", number, sample)


def _answers(
    ask: Ask, key: object, of: object, take: Callable[[Any], None], questions: Sequence[Activity]
) -> list[float | Absent]:
    """A value or its absence for each question since the last look. Raises Absent: no GPM, no such look."""
    if not ask.once("gpm supported", lambda: _is_supported(ask)):
        raise Absent(NOT_SUPPORTED, "GPM is for Hopper and later")
    window: _Window = ask.once(key, lambda: _Window(ask.pynvml))
    now = monotonic()
    since = math.inf if window.taken_at is None or window.of != of else now - window.taken_at
    if since >= _SHORTEST_WINDOW_SECONDS:
        take(window.next)
        window.answers = None
        if since <= _LONGEST_WINDOW_SECONDS:
            window.answers = _computed(ask, window, questions)
        window.last, window.next = window.next, window.last
        window.taken_at, window.of = now, of
    if window.answers is None:
        raise Absent(NOT_ASKED, _FIRST_LOOK)
    return window.answers


def _is_supported(ask: Ask) -> bool:
    return bool(ask.allowing(_REFUSALS, "nvmlGpmQueryDeviceSupport").isSupportedDevice)


def _computed(ask: Ask, window: _Window, questions: Sequence[Activity]) -> list[float | Absent]:
    """What both samples of the window give."""
    request = ask.once(("gpm request", len(questions)), lambda: _request(ask.pynvml, questions))
    request.sample1, request.sample2 = window.last, window.next
    ask.asking = "nvmlGpmMetricsGet"
    ask.pynvml.nvmlGpmMetricsGet(request)
    return [_value(request.metrics[place], question) for place, question in enumerate(questions)]


def _request(pynvml: Any, questions: Sequence[Activity]) -> Any:
    """The question for all metrics: a struct of 19 kB, made once."""
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(questions)
    for place, question in enumerate(questions):
        request.metrics[place].metricId = question.number
    return request


def _value(metric: Any, question: Activity) -> float | Absent:
    if metric.nvmlReturn != 0:
        reason = reason_of_code(metric.nvmlReturn)
        return Absent(
            reason, "" if reason == NOT_SUPPORTED else f"GPM {question.number} (NVML {metric.nvmlReturn})"
        )
    if not math.isfinite(metric.value):  # DCGM takes it for no value too
        return Absent(NOT_SUPPORTED, f"GPM {question.number} is {metric.value}")
    if metric.value < 0:
        return Absent(ERROR, f"GPM {question.number} is {metric.value}")
    value: float = metric.value * question.per
    return round(value, _DECIMALS if question.per == 1 else 0)


def read_nvlink_traffic(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the data sent over all NVLinks, and the rate since the last look; links are read before."""
    if "nvlinks" in sheet.missing and sheet.lost is None:
        for name in _TRAFFIC:
            sheet.mark(name, *sheet.missing["nvlinks"])
        return
    sheet.read_together(_TRAFFIC[:2], _traffic, ask)
    transmitted, received = (sheet.values.get(name) for name in _TRAFFIC[:2])
    if transmitted is None or received is None:
        sheet.mark(_TRAFFIC[2], *sheet.missing[_TRAFFIC[0]])
    elif ask.repeated:
        sheet.read(_TRAFFIC[2], _throughput, ask, transmitted + received)


def _traffic(ask: Ask) -> list[int]:
    """Bytes sent and received, from the batch of the links' own fields, or asked for by themselves."""
    values = [ask.fields.get(field) for field in TRAFFIC_FIELDS]
    if None in values:
        values = list(ask.allowing(_REFUSALS, "nvmlDeviceGetFieldValues", list(TRAFFIC_FIELDS)))
    return [known(int(field_value(value))) * KIB for value in values]


def _throughput(ask: Ask, total: int) -> float:
    """Bytes per second since the last look. Raises Absent: there was none, or the counters were reset."""
    now = monotonic()
    before, then = ask.kept.get("nvlink traffic", (None, 0.0))
    if before is not None and now - then < _SHORTEST_WINDOW_SECONDS:
        before, then = ask.kept.get("nvlink traffic before", (None, 0.0))
    else:
        ask.kept["nvlink traffic before"] = (before, then)
        ask.kept["nvlink traffic"] = (total, now)
    if before is None or total < before or now - then > _LONGEST_WINDOW_SECONDS:
        raise Absent(NOT_ASKED, _FIRST_LOOK)
    return float(round((total - before) / (now - then)))
