"""`GET /metrics` of a machine with eight ranks on one H100, as it was recorded there, and of the simulated
machine today.

Both dialects, GPM's values included: every series and value is the same, but for those that are named here
with their reason.
"""

import re

import pytest

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session
from tests.api.serving import serving
from tests.recorded_machines import BUSY, read_recorded

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
DIALECTS = {
    "h100/metrics-busy.txt": "/metrics",
    "h100/metrics-dcgm-busy.txt": "/metrics?dialect=dcgm",
}
# The host's name was replaced; on the simulated machine it is another.
HOST_LABELS = ("host", "Hostname")


def samples_of(text: str) -> dict[str, dict[str, float]]:
    """The values by metric and by labels, without the host and what says that it is simulated."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name, labels, value = SAMPLE.fullmatch(line).groups()
        pairs = [pair for pair in LABEL.findall(labels or "") if pair[0] not in (*HOST_LABELS, "simulated")]
        found.setdefault(name, {})[",".join(f"{key}={word}" for key, word in sorted(pairs))] = float(value)
    return found


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with (
        open_session(load_scenario(str(BUSY))) as session,
        serving(session, tmp_path_factory.mktemp("state")) as served,
    ):
        served.wait_for_data()
        # GPM's values are between two samples.
        served.wait(lambda: "gpudiag_gpu_sm_activity_ratio{" in served.get("/metrics").text)
        served.wait(lambda: "gpudiag_checks{" in served.get("/metrics").text)
        yield served


# What differs, and why.
EXPLAINED = {
    "gpudiag_checks": "gpudiag 0.1.0 took the machine for a container, and skipped what it judges now",
    "gpudiag_collect_duration_seconds": "how long the driver takes, and a simulated library",
    "gpudiag_collect_last_success_timestamp_seconds": "the time of the look",
    "gpudiag_sampler_state": "the real sampler was slow",
}
# Metrics that are younger than the recordings.
YOUNGER = {"gpudiag_gpu_processes_memory_bytes"}


@pytest.mark.parametrize("name", DIALECTS)
def test_the_metrics_are_what_was_recorded(service, name: str):
    recorded, ours = samples_of(read_recorded(name)), samples_of(service.get(DIALECTS[name]).text)
    assert len(recorded) > 35
    different = {
        metric: (recorded.get(metric), ours.get(metric))
        for metric in recorded.keys() | ours.keys()
        if recorded.get(metric) != ours.get(metric) and metric not in EXPLAINED.keys() | YOUNGER
    }
    assert different == {}
    assert recorded.keys() == ours.keys() - YOUNGER


def test_the_values_of_gpm_are_among_them():
    recorded = samples_of(read_recorded("h100/metrics-dcgm-busy.txt"))
    activity = {name for name in recorded if name.startswith("DCGM_FI_PROF_")}
    assert len(activity) == 12
    assert sum(value > 0 for name in activity for value in recorded[name].values()) == 7
