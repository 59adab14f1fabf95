"""The probe layer on a real GPU, held against what nvidia-smi prints."""

import shutil
import subprocess

import pytest

from gpudiag.model.device import SourceState
from gpudiag.model.reading import Missing
from gpudiag.probe.inventory import take_snapshot

MIB = 1024**2

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def snapshot():
    status = take_snapshot(("nvml",), 20.0).source("nvml")
    if status.state is not SourceState.OK:
        pytest.skip(f"no GPU here: {status.reason or status.state.value}")
    return take_snapshot(("nvml", "gputil", "torch"), 20.0)


def nvidia_smi(*columns):
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi to compare with")
    argv = ["nvidia-smi", f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    return [line.split(", ") for line in lines]


def test_every_gpu_responds_and_has_an_identity(snapshot):
    assert snapshot.devices
    for device in snapshot.devices:
        assert device.responding is True
        assert device.id.uuid.startswith("GPU-")
        assert not isinstance(device.id.bus_id, Missing)


def test_readings_are_nvidia_smis(snapshot):
    columns = (
        "uuid",
        "name",
        "memory.total",
        "driver_version",
        "vbios_version",
        "power.max_limit",
        "clocks.max.sm",
    )
    for device, row in zip(snapshot.devices, nvidia_smi(*columns), strict=True):
        uuid, name, total_mib, driver, vbios, power_max, sm_max = row
        assert (device.id.uuid, device.name, snapshot.driver_version) == (uuid, name, driver)
        assert device.memory_total_bytes // MIB == int(total_mib)
        for reading, text in (
            (device.vbios_version, vbios),
            (device.power_limit_max_watts, power_max),
            (device.sm_clock_max_mhz, sm_max),
        ):
            if isinstance(reading, Missing):
                assert text.startswith("["), (reading, text)
            else:
                assert str(reading) == text or float(reading) == pytest.approx(float(text))


def test_no_reading_is_an_error(snapshot):
    errors = {
        name: reading
        for device in snapshot.devices
        for name in device.__dataclass_fields__
        if isinstance(reading := getattr(device, name), Missing) and reading.reason.value == "error"
    }
    assert errors == {}


def test_the_sources_agree_but_for_what_settings_explain(snapshot):
    assert [item for item in snapshot.disagreements if not item.expected] == []


def test_gputil_shows_the_same_gpus(snapshot):
    if snapshot.source("gputil").state is not SourceState.OK:
        pytest.skip(str(snapshot.source("gputil").reason))
    uuids = [view.uuid for view in snapshot.views if view.source == "gputil"]
    assert uuids == [device.id.uuid for device in snapshot.devices]


def test_torch_starts_a_context_on_each_gpu_that_it_counts(snapshot):
    status = snapshot.source("torch")
    if status.state is not SourceState.OK:
        pytest.skip(str(status.reason))
    assert snapshot.torch.context_starts is True
    views = [view for view in snapshot.views if view.source == "torch"]
    assert len(views) == snapshot.torch.device_count
    known = {device.id.uuid for device in snapshot.devices}
    assert {view.uuid for view in views if view.uuid.startswith("GPU-")} <= known
