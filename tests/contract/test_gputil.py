"""The real GPUtil over an nvidia-smi that answers as the real one does, well and badly."""

import os
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpudiag.model.device import SourceState
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.gputil.answer import gputil_answer_of, start_gputil
from gpudiag.probe.guard import collect

# Found, not imported: from Python 3.12 on GPUtil cannot be imported without help, which the probe gives.
pytestmark = pytest.mark.skipif(find_spec("GPUtil") is None, reason="GPUtil is not installed")

MIB = 1024**2
GPU_0 = "0, GPU-aaaa, 25, 81559, 1024, 80535, 580.105.08, NVIDIA H100 80GB HBM3, 1650000000001, Disabled, [N/A], 29"
GPU_1 = GPU_0.replace("0, GPU-aaaa", "1, GPU-bbbb", 1)
SOON = 60.0  # proves that nothing hung, not how fast anything is


@pytest.fixture
def ask(tmp_path):
    """A function that asks GPUtil on a machine whose nvidia-smi runs the given shell script."""

    def run(script, deadline=SOON):
        if script is not None:
            program = tmp_path / "nvidia-smi"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        child = start_gputil({**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"})
        collect([(child, child.started_at + deadline)])
        status, views = gputil_answer_of(child)
        return status, views

    return run


def printing(*lines, status=0):
    text = "".join(f"{line}\n" for line in lines)
    return f"cat <<'END'\n{text}END\nexit {status}"


def test_a_healthy_machine_is_shown_in_bytes(ask):
    status, (first, second) = ask(printing(GPU_0, GPU_1))
    assert (status.state, status.reason, status.device_count) == (SourceState.OK, None, 2)
    assert (first.source_index, first.uuid, first.name) == (0, "GPU-aaaa", "NVIDIA H100 80GB HBM3")
    assert (first.memory_total_bytes, first.memory_used_bytes) == (81559 * MIB, 1024 * MIB)
    assert (first.utilization_percent, first.driver_version) == (25, "580.105.08")
    assert second.uuid == "GPU-bbbb"


@pytest.mark.parametrize(
    ("line", "status", "state"),
    [
        ("No devices were found", 6, SourceState.NO_DEVICES),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
            "latest NVIDIA driver is installed and running.",
            9,
            SourceState.DRIVER_NOT_LOADED,
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", 18, SourceState.VERSION_MISMATCH),
        ("Failed to initialize NVML: Insufficient Permissions", 4, SourceState.NO_PERMISSION),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 12, SourceState.LIBRARY_ABSENT),
        (
            "Unable to determine the device handle for GPU 0000:5D:00.0: Unknown Error",
            255,
            SourceState.FAILED,
        ),
        ('Field "gpu_serial" is not a valid field to query.', 2, SourceState.FAILED),
    ],
)
def test_every_sentence_of_nvidia_smi_is_told_apart(ask, line, status, state):
    answer, views = ask(printing(line, status=status))
    assert (answer.state, views) == (state, ())
    assert line[:40] in answer.reason


def test_no_nvidia_smi_is_not_no_gpus(ask):
    status, views = ask(None)
    assert (status.state, views) == (SourceState.LIBRARY_ABSENT, ())
    assert isinstance(status.device_count, Missing)


def test_silence_is_not_no_gpus(ask):
    status, _ = ask("exit 0")
    assert status.state is SourceState.FAILED


def test_a_warning_behind_the_rows_costs_no_row(ask):
    warning = "WARNING: infoROM is corrupted at gpu 0000:5D:00.0"
    status, views = ask(printing(GPU_0, GPU_1, warning, status=14))
    assert (status.state, len(views)) == (SourceState.OK, 2)
    assert "infoROM is corrupted" in status.reason
    assert "ValueError" in status.reason


def test_a_gpu_without_a_handle_costs_only_itself(ask):
    sentence = "Unable to determine the device handle for GPU1: 0000:64:00.0: Unknown Error"
    status, [view] = ask(printing(GPU_0, sentence, status=255))
    assert (status.state, view.uuid) == (SourceState.OK, "GPU-aaaa")
    assert "Unable to determine" in status.reason


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("[N/A]", MissingReason.NOT_SUPPORTED),
        ("[Not Supported]", MissingReason.NOT_SUPPORTED),
        ("[GPU is lost]", MissingReason.DEVICE_LOST),
        ("[Unknown Error]", MissingReason.ERROR),
    ],
)
def test_a_cell_without_a_value_has_nvidia_smis_reason(ask, cell, reason):
    _, [view] = ask(printing(GPU_0.replace(" 25,", f" {cell},").replace("81559", cell)))
    assert view.utilization_percent == Missing(reason, cell)
    assert view.memory_total_bytes == Missing(reason, cell)
    assert view.memory_free_bytes == 80535 * MIB


def test_a_lost_gpu_is_a_view_without_values(ask):
    lost = "1, GPU-bbbb, " + ", ".join(["[GPU is lost]"] * 10)
    status, views = ask(printing(GPU_0, lost, status=15))
    assert (status.state, len(views)) == (SourceState.OK, 2)
    assert "15" in status.reason
    assert views[1].name.reason is MissingReason.DEVICE_LOST


def test_a_total_of_zero_costs_only_its_gpu(ask):
    status, views = ask(printing(GPU_0, GPU_1.replace("81559", "0")))
    assert [view.uuid for view in views] == ["GPU-aaaa"]
    assert "ZeroDivisionError" in status.reason


def test_a_name_with_a_comma_is_not_cut_in_silence(ask):
    _, [view] = ask(printing(GPU_0.replace("80GB HBM3", "80GB, HBM3")))
    assert view.name.reason is MissingReason.ERROR
    assert view.memory_total_bytes == 81559 * MIB


def test_the_locale_is_the_one_that_gputil_understands(ask):
    status, _ = ask(f'[ "$LC_ALL" = C ] || exit 3\n{printing(GPU_0)}')
    assert status.state is SourceState.OK


def test_an_nvidia_smi_that_hangs_is_killed(ask, tmp_path):
    before = time.monotonic()
    status, views = ask(f"echo $$ > {tmp_path}/pid\nexec sleep 600", deadline=1.5)
    assert (status.state, views) == (SourceState.TIMED_OUT, ())
    assert time.monotonic() - before < SOON
    pid = (tmp_path / "pid").read_text().strip()
    until = time.monotonic() + SOON
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
