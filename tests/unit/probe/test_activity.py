"""What happened between two looks: NVML's GPM and the counters of NVLink, on a stand-in for pynvml."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpudiag.probe.nvml import activity
from gpudiag.probe.nvml.activity import (
    add_instance_activity,
    read_activity,
    read_nvlink_traffic,
    release_samples,
)
from gpudiag.probe.nvml.ask import Ask, DeviceSheet
from gpudiag.reference.declaration import Activity
from gpudiag.reference.readings import READINGS

_READINGS = [one for one in READINGS if isinstance(one.question, Activity)]
_NAMES = {one.name for one in _READINGS}
LOST, NO_PERMISSION, NOT_SUPPORTED = 15, 4, 3


class Gpm:
    """pynvml's part of GPM: what each metric is, the code of each call, and which samples there are."""

    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self) -> None:
        self.supported = 1
        self.code = 0
        self.metrics: dict[int, float | Exception] = {}
        self.alive: list[Any] = []
        self.asked: list[tuple[str, Any]] = []
        self.fields: dict[tuple[int, int], int] = {}

    def nvmlGpmQueryDeviceSupport(self, _handle: object) -> Any:
        self.asked.append(("support", None))
        return SimpleNamespace(isSupportedDevice=self.supported)

    def nvmlGpmSampleAlloc(self) -> Any:
        sample = pynvml.c_nvmlGpmSample_t(pynvml.struct_c_nvmlGpmSample_t())
        self.alive.append(sample)
        return sample

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.alive = [one for one in self.alive if one is not sample]

    def nvmlGpmSampleGet(self, _handle: object, sample: Any) -> None:
        self._take("gpu", sample)

    def nvmlGpmMigSampleGet(self, _handle: object, number: int, sample: Any) -> None:
        self._take(number, sample)

    def _take(self, of: object, sample: Any) -> None:
        assert any(one is sample for one in self.alive)
        self.asked.append(("sample", of))
        if self.code:
            raise pynvml.NVMLError(self.code)

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        self.asked.append(("metrics", request.numMetrics))
        for place in range(request.numMetrics):
            metric = request.metrics[place]
            value = self.metrics.get(metric.metricId, 50.0)
            metric.nvmlReturn = value.value if isinstance(value, pynvml.NVMLError) else 0
            metric.value = 0.0 if isinstance(value, Exception) else value

    def nvmlDeviceGetFieldValues(self, _handle: object, wanted: list[tuple[int, int]]) -> list[Any]:
        self.asked.append(("fields", tuple(wanted)))
        return [
            SimpleNamespace(
                fieldId=one[0],
                nvmlReturn=0 if one in self.fields else NOT_SUPPORTED,
                valueType=3,
                value=SimpleNamespace(ullVal=self.fields.get(one, 0)),
            )
            for one in wanted
        ]


class Repeated(Ask):
    """An Ask of a caller that asks again and again."""

    repeated = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [1000.0]
    monkeypatch.setattr(activity, "monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def look(ask: Ask) -> DeviceSheet:
    sheet = DeviceSheet()
    read_activity(ask, sheet, _READINGS)
    return sheet


def reasons(sheet: DeviceSheet) -> set[str]:
    assert sheet.missing.keys() == _NAMES
    return {reason for reason, _ in sheet.missing.values()}


def test_two_looks_give_the_mean_between_them(clock: Callable[[float], None]) -> None:
    nvml = Gpm()
    nvml.metrics = {2: 91.23456, 20: 1.5, 61: 2.0}
    ask = Repeated(nvml, "handle")
    assert reasons(look(ask)) == {"not_asked"}
    clock(5.0)
    sheet = look(ask)
    assert sheet.missing == {}
    assert sheet.values.keys() == _NAMES
    assert sheet.values["sm_activity_percent"] == 91.235
    assert sheet.values["pcie_transmitted_bytes_per_second"] == 1.5 * 2**20
    assert sheet.values["nvlink_transmitted_bytes_per_second"] == 2.0 * 2**20
    # Support is asked once; then a sample, and one call for all metrics.
    assert [name for name, _ in nvml.asked] == ["support", "sample", "sample", "metrics"]


def test_a_single_look_asks_nothing() -> None:
    nvml = Gpm()
    sheet = look(Ask(nvml, "handle"))
    assert (sheet.values, sheet.missing, nvml.asked) == ({}, {}, [])


def test_a_window_is_neither_too_short_nor_too_long(clock: Callable[[float], None]) -> None:
    nvml = Gpm()
    ask = Repeated(nvml, "handle")
    look(ask)
    clock(5.0)
    assert look(ask).values["sm_activity_percent"] == 50.0
    nvml.metrics = {2: 60.0}
    clock(0.1)
    assert look(ask).values["sm_activity_percent"] == 50.0  # of the last window: this one is too short
    clock(3600.0)
    assert reasons(look(ask)) == {"not_asked"}  # after a pause: a mean over an hour is not of now
    clock(5.0)
    assert look(ask).values["sm_activity_percent"] == 60.0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (pynvml.NVMLError(NOT_SUPPORTED), "not_supported"),
        (math.nan, "not_supported"),
        (-1.0, "error"),
        (pynvml.NVMLError(999), "error"),
    ],
    ids=["a metric that this GPU lacks", "no number", "less than nothing", "a failure"],
)
def test_what_is_refused_has_its_own_reason(
    clock: Callable[[float], None], answer: float | Exception, reason: str
) -> None:
    nvml = Gpm()
    nvml.metrics = {60: answer}
    ask = Repeated(nvml, "handle")
    look(ask)
    clock(5.0)
    sheet = look(ask)
    assert sheet.missing["nvlink_received_bytes_per_second"][0] == reason
    assert sheet.values.keys() == _NAMES - {"nvlink_received_bytes_per_second"}
    assert ask.noted.failed == {}  # no fault of the GPU


def test_a_gpu_without_gpm_is_asked_once(clock: Callable[[float], None]) -> None:
    nvml = Gpm()
    nvml.supported = 0
    ask = Repeated(nvml, "handle")
    for _ in range(3):
        assert reasons(look(ask)) == {"not_supported"}
        clock(5.0)
    assert nvml.asked == [("support", None)]
    assert nvml.alive == []


def test_a_refused_sample_is_tried_again_and_measures_over_the_gap(clock: Callable[[float], None]) -> None:
    nvml = Gpm()
    ask = Repeated(nvml, "handle")
    look(ask)
    clock(5.0)
    nvml.code = NO_PERMISSION
    assert reasons(look(ask)) == {"no_permission"}
    assert ask.noted.failed == {}
    clock(5.0)
    nvml.code = 0
    assert look(ask).values["sm_activity_percent"] == 50.0


def test_a_lost_gpu_is_noticed_and_asked_nothing_more(clock: Callable[[float], None]) -> None:
    nvml = Gpm()
    ask = Repeated(nvml, "handle")
    look(ask)
    nvml.code = LOST
    clock(5.0)
    sheet = look(ask)
    assert reasons(sheet) == {"device_lost"}
    assert sheet.lost is not None
    asked = len(nvml.asked)
    read_activity(ask, sheet, _READINGS)
    assert len(nvml.asked) == asked


def test_samples_are_freed_when_the_handle_is_given_up(clock: Callable[[float], None]) -> None:
    nvml = Gpm()
    ask = Repeated(nvml, "handle")
    look(ask)
    assert len(nvml.alive) == 2
    release_samples(ask)
    assert nvml.alive == []


def instances(*uuids: str) -> list[dict[str, Any]]:
    return [
        {"uuid": uuid, "name": "MIG", "gpu_instance_id": 2, "missing": {}, "missing_detail": {}}
        for uuid in uuids
    ]


def test_a_gpu_instance_that_is_made_anew_begins_anew(clock: Callable[[float], None]) -> None:
    nvml = Gpm()
    ask = Repeated(nvml, "handle")

    def look_at(uuid: str) -> dict[str, Any]:
        sheet = DeviceSheet()
        sheet.values["mig_instances"] = instances(uuid, f"{uuid}-second")
        add_instance_activity(ask, sheet, _READINGS)
        first, second = sheet.values["mig_instances"]
        assert first.get("sm_activity_percent") == second.get("sm_activity_percent")
        member: dict[str, Any] = first
        return member

    assert look_at("MIG-1")["missing"]["sm_activity_percent"] == "not_asked"
    clock(5.0)
    assert look_at("MIG-1")["sm_activity_percent"] == 50.0
    clock(5.0)
    assert look_at("MIG-2")["missing"]["sm_activity_percent"] == "not_asked"
    samples = [of for name, of in nvml.asked if name == "sample"]
    assert samples == [2, 2, 2]  # one for both compute instances of the GPU instance


def traffic(ask: Ask) -> DeviceSheet:
    sheet = DeviceSheet()
    read_nvlink_traffic(ask, sheet)
    return sheet


def test_the_data_over_all_links_and_its_speed(clock: Callable[[float], None]) -> None:
    nvml = Gpm()
    every = 0xFFFFFFFF
    nvml.fields = {(138, every): 1000, (139, every): 500}
    ask = Repeated(nvml, "handle")
    first = traffic(ask)
    assert first.values == {"nvlink_transmitted_bytes": 1000 * 1024, "nvlink_received_bytes": 500 * 1024}
    nvml.fields = {(138, every): 2000, (139, every): 1000}
    clock(5.0)
    assert traffic(ask).values["nvlink_throughput_bytes_per_second"] == 1500 * 1024 / 5
    clock(5.0)
    nvml.fields = {(138, every): 1, (139, every): 1}  # the driver was loaded anew
    assert traffic(ask).missing["nvlink_throughput_bytes_per_second"][0] == "not_asked"
    assert set(nvml.asked) == {("fields", ((138, every), (139, every)))}


def test_without_links_their_data_is_not_asked() -> None:
    nvml = Gpm()
    sheet = DeviceSheet()
    sheet.mark("nvlinks", "not_supported", "the GPU has no NVLink")
    read_nvlink_traffic(Repeated(nvml, "handle"), sheet)
    assert nvml.asked == []
    assert {reason for reason, _ in sheet.missing.values()} == {"not_supported"}
