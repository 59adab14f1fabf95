"""Both dialects of the metrics, as text and as OpenMetrics: what each says of a machine, and that strict
parsers take it.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from gpudiag.model.device import Snapshot
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.service import TimelineEntry, TimelineKind, XidTally
from gpudiag.render.exposition import Page
from gpudiag.render.metrics_dcgm import render_dcgm
from gpudiag.render.metrics_native import ServiceNumbers, render_metrics
from gpudiag_api.negotiation import wants_openmetrics
from tests.unit.render.simulated_snapshots import simulated_snapshot
from tests.walking import walk

NUMBERS = ServiceNumbers("ok", True, 1_790_000_000.125, 0.1, 0, 0, 0, "ok")
MACHINES = {
    spec: simulated_snapshot(spec)
    for spec in (
        "h100x8+busy:0",
        "h100-mig+busy:0",
        "h100x8+lost:5",
        "a100x8",
        "t4x1",
        "gb10",
        "vgpu",
        "rtx4090x2",
    )
}
BUSY, MIG, LOST = (MACHINES[spec] for spec in ("h100x8+busy:0", "h100-mig+busy:0", "h100x8+lost:5"))


def events(
    snapshot: Snapshot, *xids: int, gpu: int = 5, age: timedelta = timedelta(0)
) -> tuple[TimelineEntry, ...]:
    device = snapshot.devices[gpu]
    return tuple(
        TimelineEntry(
            number,
            snapshot.taken_at - age,
            TimelineKind.XID,
            "",
            uuid=str(device.id.uuid),
            nvml_index=gpu,
            xid_code=xid,
        )
        for number, xid in enumerate(xids, start=1)
    )


def pages(snapshot: Snapshot, *, openmetrics: bool) -> list[str]:
    told = events(snapshot, 31, 79, gpu=len(snapshot.devices) - 1)
    tallies = tuple(XidTally(one.uuid, one.nvml_index, one.xid_code or 0, 1, one.at) for one in told)
    numbers = replace(NUMBERS, processes=True, xids=tallies)
    return [
        render_metrics(snapshot, numbers, openmetrics=openmetrics),
        render_metrics(snapshot, numbers, full=True, openmetrics=openmetrics),
        render_dcgm(snapshot, told, openmetrics=openmetrics),
        render_dcgm(snapshot, told, host_label="both", openmetrics=openmetrics),
    ]


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"(?:,|$)')


def parse_text(page: str) -> Series:
    """Each series of a page of text, once.

    The library's parser takes no counter without `_total`, as dcgm-exporter's.
    """
    series: Series = {}
    for line in page.splitlines():
        if not line.startswith("# "):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            labels = LABEL.findall(match[2] or "")
            assert ",".join(f'{name}="{word}"' for name, word in labels) == (match[2] or "")
            key = (match[1], frozenset(labels))
            assert key not in series, f"twice: {line}"
            series[key] = float(match[3])
    return series


def series_of(families: Iterable[Metric]) -> Series:
    """Each series of parsed OpenMetrics; its parser refuses one that comes twice."""
    return {
        (one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples
    }


def values(page: str, name: str, **labels: str) -> list[float]:
    return [
        value
        for (sample, told), value in parse_text(page).items()
        if sample == name and labels.items() <= dict(told).items()
    ]


@walk(MACHINES)
def test_openmetrics_is_strictly_right_and_has_the_same_series(spec: str) -> None:
    snapshot = MACHINES[spec]
    for text, told in zip(pages(snapshot, openmetrics=False), pages(snapshot, openmetrics=True), strict=True):
        assert told.endswith("\n# EOF\n")
        assert "# EOF" not in text
        assert series_of(parse_openmetrics(told)) == parse_text(text)


def test_openmetrics_says_kind_and_unit() -> None:
    native = {family.name: family for family in parse_openmetrics(pages(BUSY, openmetrics=True)[1])}
    expected = {
        "gpudiag_gpu": ("info", ""),
        "gpudiag_build": ("info", ""),
        "gpudiag_gpu_memory_used_bytes": ("gauge", "bytes"),
        "gpudiag_gpu_power_watts": ("gauge", "watts"),
        "gpudiag_gpu_energy_joules": ("counter", "joules"),
        "gpudiag_gpu_throttle_seconds": ("counter", "seconds"),
        "gpudiag_gpu_sm_activity_ratio": ("gauge", "ratio"),
        "gpudiag_gpu_pcie_bytes_per_second": ("gauge", ""),
        "gpudiag_gpu_xid_events": ("counter", ""),
        "gpudiag_gpu_up": ("gauge", ""),
    }
    assert {name: (native[name].type, native[name].unit) for name in expected} == expected
    dcgm = {family.name: family.type for family in parse_openmetrics(pages(BUSY, openmetrics=True)[2])}
    assert dcgm["DCGM_FI_DEV_GPU_TEMP"] == "gauge"
    # A counter is called `_total` there, and these are not.
    assert dcgm["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "unknown"


def test_what_a_word_has_of_quotes_and_line_ends_is_escaped() -> None:
    page = Page(openmetrics=True)
    page.add("a_total", "counter", 'says "so" \\ here', [({"word": 'a "b"\\\n'}, 1.0)])
    [family] = parse_openmetrics(page.text())
    assert family.documentation == 'says "so" \\ here'
    assert family.samples[0].labels["word"].startswith('a "b"\\')


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("snapshot", [MIG, LOST], ids=["MIG", "lost"])
def test_promtool_has_no_remark_on_our_own_names(snapshot: Snapshot) -> None:
    page = pages(snapshot, openmetrics=False)[1]
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# --- the formats that scrapers ask for

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
ACCEPTED = {
    None: False,
    "": False,
    "*/*": False,
    "text/plain": False,
    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": False,
    PROMETHEUS_2: True,
    PROMETHEUS_3: True,
    "application/openmetrics-text": True,
    "Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8": True,
    "application/openmetrics-text; version=0.0.1": False,
    "application/openmetrics-text; version=2.0.0, text/plain;q=0.1": False,
    "application/openmetrics-text;q=0, text/plain": False,
    "application/openmetrics-text;q=0.3, text/plain;version=0.0.4;q=0.8": False,
    "application/openmetrics-text;q=0.8, text/plain;version=0.0.4;q=0.3": True,
    "application/openmetrics-text;q=0.5, */*": False,
    "application/openmetrics-text, text/plain": True,
    "text/plain;q=0.1, application/openmetrics-text;q=0.2, */*;q=0.9": True,
    "application/openmetrics-text;q=high": False,
    "application/openmetrics-text;q=7": False,
    ";;,=;,": False,
}


@walk(ACCEPTED)
def test_openmetrics_is_given_to_those_who_ask_for_it(accept: str | None) -> None:
    assert wants_openmetrics(accept) is ACCEPTED[accept]


# --- what both dialects say


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("gpudiag_gpu_sm_activity_ratio", {"gpu": "0"}, 0.91687),
        ("gpudiag_gpu_tensor_activity_ratio", {"gpu": "0"}, 0.52845),
        ("gpudiag_gpu_pcie_bytes_per_second", {"gpu": "0", "direction": "rx"}, 2_871_001_088),
        ("gpudiag_gpu_nvlink_bytes_per_second", {"gpu": "0", "direction": "tx"}, 118_380_036_096),
        ("gpudiag_gpu_energy_joules_total", {"gpu": "0"}, 124_000_000),
        ("gpudiag_gpu_pipe_activity_ratio", {"gpu": "0", "pipe": "fp16"}, 0.04027),
        ("DCGM_FI_PROF_SM_ACTIVE", {"gpu": "0"}, 0.91687),
        ("DCGM_FI_PROF_DRAM_ACTIVE", {"gpu": "0"}, 0.41206),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", {"gpu": "0"}, 1_254_096_896),
        ("DCGM_FI_PROF_NVLINK_RX_BYTES", {"gpu": "0"}, 118_204_923_904),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", {"gpu": "0"}, 124_000_000_000),
        ("DCGM_FI_DEV_ENC_UTIL", {"gpu": "0"}, 0),
        ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", {"gpu": "7"}, 0),
    ],
)
def test_a_reading_has_its_unit_in_each_dialect(name: str, labels: dict[str, str], expected: float) -> None:
    page = "".join(pages(BUSY, openmetrics=False)[1:3])
    assert values(page, name, **labels) == [expected]


def test_nvlinks_bandwidth_is_what_dcgm_makes_of_it() -> None:
    """DCGM: the difference of the counters in KiB, by the seconds between, by 1000."""
    one = replace(BUSY.devices[0], nvlink_throughput_bytes_per_second=1024.0 * 1000 * 42)
    page = render_dcgm(replace(BUSY, devices=(one,)))
    assert values(page, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL") == [42]


def test_what_the_hardware_cannot_give_is_absent_and_never_0() -> None:
    old = "".join(pages(MACHINES["a100x8"], openmetrics=False))
    assert "activity" not in old
    assert "DCGM_FI_PROF" not in old
    assert "gpudiag_gpu_vgpu_licensed" not in old
    assert values(pages(MACHINES["vgpu"], openmetrics=False)[0], "gpudiag_gpu_vgpu_licensed") == [1]
    assert values(pages(MACHINES["vgpu"], openmetrics=False)[2], "DCGM_FI_DEV_VGPU_LICENSE_STATUS") == [1]


# --- MIG


def test_a_mig_instance_is_a_series_in_our_own_names() -> None:
    page = render_metrics(MIG, NUMBERS)
    who = {"gpu": "0", "gpu_instance_id": "2", "profile": "3g.40gb"}
    assert values(page, "gpudiag_mig_info", mig_uuid="MIG-683337d3-217c-584d-9e40-434aa184db17", **who) == [1]
    assert values(page, "gpudiag_mig_memory_total_bytes", **who) == [42_412_802_048]
    assert values(page, "gpudiag_mig_sm_activity_ratio", **who) == [0.91687]
    assert values(page, "gpudiag_mig_sm_activity_ratio", gpu_instance_id="3", profile="2g.20gb") == [0]
    assert len(values(page, "gpudiag_mig_info")) == 4


def test_a_mig_instance_is_a_series_as_dcgm_exporter_has_it() -> None:
    page = render_dcgm(MIG)
    who = {"GPU_I_ID": "2", "GPU_I_PROFILE": "3g.40gb", "gpu": "0"}
    assert values(page, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", **who) == [0.97412]
    assert values(page, "DCGM_FI_DEV_FB_TOTAL", **who) == [42_412_802_048 / 2**20]
    # The instances take the place of the whole GPU, or a sum would count its memory twice.
    assert len(values(page, "DCGM_FI_DEV_FB_USED")) == len(values(page, "DCGM_FI_DEV_FB_USED", gpu="0")) == 4
    # What an instance has not is told once.
    assert len(values(page, "DCGM_FI_DEV_GPU_TEMP")) == 1
    assert "GPU_I_ID" not in next(
        line for line in page.splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP{")
    )
    order = re.findall(
        r'(\w+)="', next(line for line in page.splitlines() if line.startswith("DCGM_FI_DEV_FB_USED{"))
    )
    assert order[4:8] == ["modelName", "GPU_I_PROFILE", "GPU_I_ID", "Hostname"]


def test_compute_instances_of_one_gpu_instance_are_one_series() -> None:
    device = MIG.devices[0]
    assert isinstance(device.mig_instances, tuple)
    first = device.mig_instances[0]
    twin = replace(first, uuid="MIG-twin", compute_instance_id=1)
    shared = replace(MIG, devices=(replace(device, mig_instances=(first, twin)),))
    assert len(values(render_dcgm(shared), "DCGM_FI_DEV_FB_USED")) == 1
    assert len(values(render_metrics(shared, NUMBERS), "gpudiag_mig_memory_used_bytes")) == 1
    assert len(values(render_metrics(shared, NUMBERS), "gpudiag_mig_info")) == 2


# --- a lost GPU, its Xids, the host


def test_a_lost_gpu_keeps_the_series_of_its_xid() -> None:
    page = render_dcgm(LOST)
    assert values(page, "DCGM_FI_DEV_XID_ERRORS", gpu="5") == [79]
    assert values(page, "DCGM_FI_DEV_XID_ERRORS", gpu="4") == [0]
    assert values(page, "DCGM_FI_DEV_GPU_TEMP", gpu="5") == []
    for xids, shown in (((119,), 119), ((79, 154), 79), ((154,), 79)):
        assert values(render_dcgm(LOST, events(LOST, *xids)), "DCGM_FI_DEV_XID_ERRORS", gpu="5") == [shown]
    assert values(render_dcgm(BUSY, events(BUSY, 154)), "DCGM_FI_DEV_XID_ERRORS", gpu="5") == [154]
    bus_id = str(LOST.devices[5].id.bus_id)
    logged = KernelEvent(KernelEventKind.XID, LOST.taken_at, "", bus_id=bus_id, xid_code=119)
    assert values(render_dcgm(replace(LOST, kernel_log=(logged,))), "DCGM_FI_DEV_XID_ERRORS", gpu="5") == [
        119
    ]


def test_a_gpu_that_is_listed_no_more_has_the_index_that_it_had() -> None:
    gone = replace(
        LOST.devices[5], id=replace(LOST.devices[5].id, nvml_index=Missing(MissingReason.DEVICE_LOST))
    )
    page = render_dcgm(replace(LOST, devices=(*LOST.devices[:5], gone)), last_indices={str(gone.id.uuid): 5})
    assert values(page, "DCGM_FI_DEV_XID_ERRORS", gpu="5", device="nvidia5", UUID=str(gone.id.uuid)) == [79]


def test_xids_are_counted_for_as_long_as_dcgm_exporter_does() -> None:
    told = (*events(BUSY, 31, 31, 94, gpu=2), *events(BUSY, 48, gpu=2, age=timedelta(minutes=6)))
    page = render_dcgm(BUSY, told)
    window = {"gpu": "2", "window_size_in_ms": "300000"}
    assert values(page, "DCGM_EXP_XID_ERRORS_COUNT", xid="31", **window) == [2]
    assert len(values(page, "DCGM_EXP_XID_ERRORS_COUNT")) == 2


def test_the_host_is_called_as_the_scraper_wants_it() -> None:
    trials = {"Hostname": {"Hostname"}, "hostname": {"hostname"}, "both": {"Hostname", "hostname"}}
    for host_label, names in trials.items():
        page = render_dcgm(BUSY, host_label=host_label)  # type: ignore[arg-type] # the words of the Literal
        [(_, labels), *_] = parse_text(page)
        assert {name for name, word in labels if word == BUSY.host} == names
    assert render_dcgm(BUSY) == render_dcgm(BUSY, host_label="Hostname")
