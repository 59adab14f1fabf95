from datetime import datetime
from types import SimpleNamespace

import pytest

from gpudiag.compat import UTC
from gpudiag.installed import pip_command
from gpudiag.model.device import SourceState
from gpudiag.model.host import Container
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.probe.nvml.answer import CANNOT_LOAD, explain_failure, explain_no_devices, nvml_answer_of
from tests.unit.model.nouns import make_machine

LIBRARY = {
    "driver_version": "580.105.08",
    "nvml_version": "13.580",
    "cuda_driver_version": "13.0",
    "missing": {},
}
VITAL = (
    "memory_total_bytes",
    "utilization_percent",
    "temperature_celsius",
    "power_draw_watts",
    "pstate",
    "sm_clock_mhz",
)
IN_A_CONTAINER = make_machine(container=Container("docker", NOT_ASKED, "/.dockerenv"))


def child(*messages, ending="finished", seconds=0.1, detail=""):
    return SimpleNamespace(messages=list(messages), ending=ending, seconds=seconds, detail=detail)


def answer(*messages, count=None, **ended):
    start = [("library", LIBRARY)] + ([("count", count)] if count is not None else [])
    return nvml_answer_of(child(*start, *messages, **ended))


def row(index, **values):
    missing = values.pop("missing", {})
    details = values.pop("missing_detail", {})
    document = {"uuid": f"GPU-{index}", "bus_id": f"00000000:{index:02x}:00.0", **values}
    return ("device", index, {**document, "missing": missing, "missing_detail": details})


def failure(state="failed", code=999, words="Unknown Error (NVML 999)", library=None):
    return ("failed", {"state": state, "code": code, "words": words, "library": library})


def test_gpus_are_rows_in_nvmls_order():
    nvml = answer(row(1, pstate=0), row(0, pstate=2), count=2)
    assert nvml.status.state is SourceState.OK
    assert nvml.status.device_count == 2
    assert [(device.id.nvml_index, device.pstate) for device in nvml.devices] == [(0, 2), (1, 0)]
    assert all(device.responding is True for device in nvml.devices)
    assert nvml.cuda_driver_version == "13.0"


def test_a_gpu_that_gave_nothing_is_named_by_the_call_that_never_came_back():
    late = ("late", 0, "nvmlDeviceGetUUID", {"missing": {}, "missing_detail": {}})
    hung = answer(late, count=1, ending="timed_out", seconds=5.0).devices[0]
    said = "no answer from nvmlDeviceGetUUID within 5.0 s"
    assert hung.responding == Missing(MissingReason.TIMED_OUT, said)


def test_no_gpu_is_a_state_of_its_own():
    nvml = answer(count=0)
    assert (nvml.status.state, nvml.status.device_count, nvml.devices) == (SourceState.NO_DEVICES, 0, ())


def test_a_gpu_that_hangs_is_a_late_row_with_what_is_known_of_it():
    late = (
        "late",
        1,
        "nvmlDeviceGetPowerUsage",
        {"uuid": "GPU-1", "name": "H100", "missing": {}, "missing_detail": {}},
    )
    nvml = answer(row(0), late, count=2, ending="timed_out", seconds=5.0)
    assert nvml.status.state is SourceState.OK
    hung = nvml.devices[1]
    said = "not done within 5.0 s: 2 readings arrived, and none yet from nvmlDeviceGetPowerUsage"
    assert hung.responding == Missing(MissingReason.TIMED_OUT, said)
    assert (hung.id.uuid, hung.id.nvml_index, hung.name) == ("GPU-1", 1, "H100")
    assert hung.memory_total_bytes == Missing(MissingReason.TIMED_OUT)
    assert nvml.devices[0].responding is True


def test_a_gpu_whose_handle_hangs_is_known_by_its_index():
    hung = answer(count=1, ending="timed_out", seconds=5.0).devices[0]
    assert hung.id.nvml_index == 0
    assert hung.id.uuid == Missing(MissingReason.TIMED_OUT)
    assert "nvmlDeviceGetHandleByIndex" in hung.responding.detail


def test_a_gpu_that_is_lost_half_way_keeps_its_identity():
    lost = row(0, missing={"pstate": "device_lost"}, missing_detail={"pstate": "GPU is lost (NVML 15)"})
    device = answer(lost, count=1).devices[0]
    assert device.responding == Missing(MissingReason.DEVICE_LOST, "GPU is lost (NVML 15)")
    assert device.id.uuid == "GPU-0"


def test_a_gpu_without_a_handle_has_no_readings_for_that_reason():
    no_handle = (
        "device",
        0,
        {"missing": {"handle": "error"}, "missing_detail": {"handle": "Unknown Error (NVML 999)"}},
    )
    device = answer(no_handle, count=1).devices[0]
    assert device.responding == Missing(MissingReason.ERROR, "Unknown Error (NVML 999)")
    assert device.temperature_celsius == Missing(MissingReason.ERROR)


def test_a_gpu_that_answers_nothing_that_matters_does_not_respond():
    words = dict.fromkeys(VITAL, "Unknown Error (NVML 999)")
    device = answer(row(0, missing=dict.fromkeys(VITAL, "error"), missing_detail=words), count=1).devices[0]
    assert device.responding == Missing(MissingReason.ERROR, "Unknown Error (NVML 999)")


def test_a_gpu_that_supports_little_still_responds():
    little = row(0, missing={**dict.fromkeys(VITAL, "not_supported")})
    assert answer(little, count=1).devices[0].responding is True


def test_processes_are_described_by_what_came_from_proc():
    listed = [{"pid": pid, "kind": "compute", "memory_used_bytes": 1, "missing": {}} for pid in (7, 8)]
    described = {
        "visible": True,
        "user": "ann",
        "command": "train",
        "state": "S",
        "started_at": 1795000000.0,
    }
    described |= {"missing": {"container_id": "source_absent"}}
    device = answer(row(0, processes=listed), ("process", 7, described), count=1, ending="timed_out").devices[
        0
    ]
    first, second = device.processes
    assert (first.user, first.visible) == ("ann", True)
    assert first.started_at == datetime.fromtimestamp(1795000000, UTC)
    assert second.user.reason is MissingReason.TIMED_OUT
    assert device.responding is True


@pytest.mark.parametrize(
    ("messages", "ended", "state"),
    [
        ((), {"ending": "timed_out"}, SourceState.TIMED_OUT),
        ((("library", LIBRARY),), {"ending": "timed_out"}, SourceState.TIMED_OUT),
        ((), {"ending": "crashed", "detail": "its process was killed by SIGSEGV"}, SourceState.FAILED),
        ((), {"ending": "raised", "detail": "ValueError: x"}, SourceState.FAILED),
        ((failure("no_permission", 4),), {}, SourceState.NO_PERMISSION),
    ],
)
def test_an_nvml_that_does_not_start_is_a_state(messages, ended, state):
    nvml = nvml_answer_of(child(*messages, **ended))
    assert nvml.status.state is state
    assert isinstance(nvml.status.device_count, Missing)
    assert nvml.devices == ()


def test_a_crash_half_way_keeps_the_rows_that_came():
    nvml = answer(row(0, pstate=0), count=2, ending="crashed", detail="its process was killed by SIGSEGV")
    assert nvml.status.state is SourceState.FAILED
    assert [device.responding is True for device in nvml.devices] == [True, False]


def test_nobody_asked():
    assert nvml_answer_of(None).status.state is SourceState.NOT_ASKED


# What linkers say of a libnvidia-ml.so.1 that is there: nvidia_gpu_prometheus_exporter#19,
# alpine-pkg-glibc#199 and glances#3096 (glibc's library under musl), ld.so(8) of glibc and ldso/dynlink.c of
# musl.
UNLOADABLE = (
    ("Error relocating /usr/lib/libnvidia-ml.so.1: __strdup: symbol not found", "with glibc"),
    ("/usr/lib/libnvidia-ml.so.1: undefined symbol: gnu_get_libc_version", "with glibc"),
    (
        "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by libnvidia-ml.so.1)",
        "with glibc",
    ),
    ("libnvidia-ml.so.1: wrong ELF class: ELFCLASS32", "uname -m"),
    ("/usr/lib/libnvidia-ml.so.1: file too short", "is damaged"),
    ("/usr/lib/libnvidia-ml.so.1: invalid ELF header", "uname -m"),
    ("libdl.so.2: cannot open shared object file: No such file or directory", "ldd"),
)
BEGINNINGS = ("use", "install", "run", "restart", "look", "find", "on")  # "on Windows run ..."


@pytest.mark.parametrize(
    ("failed", "machine", "step"),
    [
        (failure("library_absent", 12), make_machine(), "no NVIDIA driver"),
        (failure("library_absent", 12), IN_A_CONTAINER, "--gpus all"),
        (failure("library_absent", 12), make_machine(kernel_driver_version="580.1"), "LD_LIBRARY_PATH"),
        (
            failure("library_absent", None, "No module named 'pynvml'"),
            make_machine(),
            pip_command("nvidia-ml-py"),
        ),
        (failure("driver_not_loaded", 9), make_machine(), "modprobe nvidia"),
        (failure("driver_not_loaded", 9), make_machine(kernel_modules=("nouveau",)), "blacklist nouveau"),
        (failure("driver_not_loaded", 9), IN_A_CONTAINER, "host"),
        (failure("no_permission", 4), make_machine(), "/dev/nvidiactl"),
        (failure("failed", 999), IN_A_CONTAINER, "restart the container"),
        (failure("failed", 15, "GPU is lost (NVML 15)"), make_machine(), "power-cycle"),
        (failure("failed", 999), make_machine(), "dmesg"),
        (failure("failed", 17), make_machine(device_nodes=("/dev/dxg",)), "wsl --update"),
        (failure("no_permission", 4), make_machine(device_nodes=("/dev/dxg",)), "/dev/dxg"),
        *(
            (failure("failed", None, f"{CANNOT_LOAD}: {words}"), make_machine(), step)
            for words, step in UNLOADABLE
        ),
    ],
)
def test_every_failure_names_the_next_step(failed, machine, step):
    nvml = nvml_answer_of(child(failed))
    words = explain_failure(nvml.failure, machine)
    assert step in words
    cause, _, advice = words.partition(": ")
    if (
        nvml.failure.state is SourceState.FAILED
    ):  # the finding has the cause for its message, and the rest for its remedy
        assert advice.split()[0] in BEGINNINGS
        assert not {word for word in advice.split() if word in cause and len(word) > 9} - {"libraries"}
    if "/dev/dxg" in str(machine.device_nodes):
        assert "/dev/nvidia" not in words


def test_a_mismatch_names_both_versions():
    failed = failure("version_mismatch", 18, library="/usr/lib/libnvidia-ml.so.580.126.09")
    words = explain_failure(
        nvml_answer_of(child(failed)).failure, make_machine(kernel_driver_version="580.105.08")
    )
    assert "580.126.09" in words
    assert "580.105.08" in words


def test_a_timeout_says_how_to_wait_longer():
    words = explain_failure(nvml_answer_of(child(ending="timed_out", seconds=5.0)).failure, make_machine())
    assert "no answer from nvmlInit within 5.0 s" in words
    assert "--deadline" in words


def test_no_devices_are_explained_by_the_container():
    assert explain_no_devices(IN_A_CONTAINER).endswith("this container (docker, by /.dockerenv)")
    assert "container" not in explain_no_devices(make_machine())


def test_a_uuid_of_two_gpus_is_a_reason_on_both_and_no_value():
    shared, own = {"uuid": "GPU-1", "memory_total_bytes": 1}, {"uuid": "GPU-2", "memory_total_bytes": 1}
    found = answer(row(0, **shared), row(1, **own), row(2, **shared), count=3)
    uuids = [device.id.uuid for device in found.devices]
    assert uuids[1] == "GPU-2"
    assert uuids[0] == uuids[2] == Missing(MissingReason.ERROR, "NVML answers GPU-1 for GPU 0 and GPU 2")
    assert [device.id.nvml_index for device in found.devices] == [0, 1, 2]
