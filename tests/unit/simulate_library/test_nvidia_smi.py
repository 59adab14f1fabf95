"""The simulated nvidia-smi: what GPUtil and people ask of it, and how it fails."""

import sys
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from gpudiag.simulate.scenario import CallFault, HostTree, Scenario, SimulatedNvml
from gpudiag.simulate.session import Session
from tests.unit.simulate_library.machines import make_gpu, make_machine, run

_SwitchOn = Callable[[Scenario], Session]
_NVML = make_machine().nvml
# What GPUtil 1.4.0 asks for.
_GPUTIL_QUERY = (
    "--query-gpu=index,uuid,utilization.gpu,memory.total,memory.used,memory.free,driver_version,name,gpu_serial,"
    "display_active,display_mode,temperature.gpu",
    "--format=csv,noheader,nounits",
)


def test_gputils_query_is_answered(switch_on: _SwitchOn) -> None:
    done = run(switch_on(make_machine(make_gpu(0), make_gpu(1))), "nvidia-smi", *_GPUTIL_QUERY)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split(", ") == [
        "1",
        make_gpu(1).readings["uuid"],
        "98",
        "81559",
        "5120",
        "75960",  # rounded up, as the other parts
        "580.105.08",
        "NVIDIA H100 80GB HBM3",
        "1650000000001",
        "Disabled",
        "[Requested functionality has been deprecated]",
        "61",
    ]


def test_gputil_sees_the_gpus(switch_on: _SwitchOn) -> None:
    pytest.importorskip("GPUtil", reason="GPUtil is not installed")
    program = "import GPUtil; print([(g.id, g.uuid, g.memoryTotal, g.load) for g in GPUtil.getGPUs()])"
    done = run(switch_on(make_machine(make_gpu(0), make_gpu(1))), sys.executable, "-c", program)
    uuids = [make_gpu(i).readings["uuid"] for i in (0, 1)]
    assert done.stdout.strip() == str([(i, uuid, 81559.0, 0.98) for i, uuid in enumerate(uuids)]), done.stderr


def test_units_headers_and_a_choice_of_gpus(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine(make_gpu(0), make_gpu(1)))
    query = "--query-gpu=index,power.draw,memory.reserved,fan.speed,pstate"
    done = run(session, "nvidia-smi", query, "--format=csv", "-i", make_gpu(1).readings["bus_id"])
    assert done.stdout.splitlines() == [
        "index, power.draw [W], memory.reserved [MiB], fan.speed [%], pstate",
        "1, 640.51 W, 480 MiB, 33 %, P2",
    ]


@pytest.mark.parametrize(
    ("reason", "cell", "status"),
    [
        ("not_supported", "[N/A]", 0),
        ("no_permission", "[Insufficient Permissions]", 0),
        ("error", "[Unknown Error]", 0),
        ("device_lost", "[GPU is lost]", 15),
    ],
)
def test_a_missing_reading_is_a_cell_of_words(
    switch_on: _SwitchOn, reason: str, cell: str, status: int
) -> None:
    gpu = make_gpu(fan_speed_percent=None, missing={"fan_speed_percent": reason})
    done = run(
        switch_on(make_machine(gpu)), "nvidia-smi", "--query-gpu=index,fan.speed", "--format=csv,noheader"
    )
    assert (done.stdout, done.returncode) == (f"0, {cell}\n", status)


@pytest.mark.parametrize(
    ("machine", "words", "status"),
    [
        (make_machine(nvml=replace(_NVML, init_code=9)), "couldn't communicate with the NVIDIA driver", 9),
        (make_machine(nvml=replace(_NVML, init_code=18)), "NVML library version: 580.105\n", 18),
        (make_machine(nvml=replace(_NVML, init_code=4)), "NVML: Insufficient Permissions", 4),
        (make_machine(nvml=replace(_NVML, init_code=999)), "NVML: Unknown Error", 255),
        (make_machine(make_gpu(visible=False)), "No devices were found", 6),
        (make_machine(nvml=SimulatedNvml(present=False)), "couldn't find libnvidia-ml.so library", 12),
    ],
    ids=["no driver", "mismatch", "no permission", "unknown", "no devices", "no library"],
)
@pytest.mark.parametrize(
    "arguments", [(), ("-L",), ("-q", "-x"), _GPUTIL_QUERY], ids=["table", "L", "xml", "csv"]
)
def test_a_broken_driver_is_reported_as_nvidia_smi_reports_it(
    switch_on: _SwitchOn, machine: Scenario, words: str, status: int, arguments: tuple[str, ...]
) -> None:
    done = run(switch_on(machine), "nvidia-smi", *arguments)
    assert words in done.stdout
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize(
    ("code", "words", "status"), [(15, "GPU is lost.  Reboot the system", 15), (999, "Unknown Error", 255)]
)
def test_a_gpu_without_a_handle_ends_the_run(
    switch_on: _SwitchOn, code: int, words: str, status: int
) -> None:
    gpus = (make_gpu(0), make_gpu(1, faults=(CallFault("nvmlDeviceGetHandleBy*", code=code),)))
    files = {f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information": "" for bus in ("19", "21")}
    done = run(switch_on(make_machine(*gpus, host=HostTree(files=files))), "nvidia-smi", "-L")
    assert done.stdout.startswith("Unable to determine the device handle for GPU0000:21:00.0: ")
    assert words in done.stdout
    assert done.returncode == status


@pytest.mark.parametrize(
    "arguments",
    [("--query-gpu=index,nonsense", "--format=csv"), ("--query-gpu=index",), ("--dance",), ("-q",)],
    ids=["field", "format", "option", "text"],
)
def test_what_it_cannot_do_is_status_2(switch_on: _SwitchOn, arguments: tuple[str, ...]) -> None:
    assert run(switch_on(make_machine()), "nvidia-smi", *arguments).returncode == 2


def test_the_list_names_gpus_and_mig_devices(switch_on: _SwitchOn) -> None:
    instance = {
        "uuid": "MIG-0",
        "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "gpu_instance_id": 7,
        "compute_instance_id": 0,
    }
    gpu = make_gpu(mig_mode="enabled", mig_instances=[instance])
    lines = run(switch_on(make_machine(gpu)), "nvidia-smi", "-L").stdout.splitlines()
    assert lines[0] == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {gpu.readings['uuid']})"
    assert lines[1].split() == ["MIG", "1g.10gb", "Device", "0:", "(UUID:", "MIG-0)"]


def test_the_xml_has_the_readings_where_the_real_one_has_them(switch_on: _SwitchOn) -> None:
    done = run(switch_on(make_machine(make_gpu(0), make_gpu(1))), "nvidia-smi", "-q", "-x")
    log = ElementTree.fromstring(done.stdout)
    assert log.findtext("attached_gpus") == "2"
    gpu = log.findall("gpu")[1]
    assert gpu.get("id") == "00000000:21:00.0"
    expected = {
        "product_architecture": "Hopper",
        "uuid": make_gpu(1).readings["uuid"],
        "mig_mode/pending_mig": "Enabled",
        "gpu_recovery_action": "Drain and Reset",
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "4",
        "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": "5",
        "pci/pci_gpu_link_info/link_widths/current_link_width": "8x",
        "pci/replay_counter": "150",
        "clocks_event_reasons/clocks_event_reason_sw_power_cap": "Active",
        "clocks_event_reasons/clocks_event_reason_gpu_idle": "Not Active",
        "fb_memory_usage/total": "81559 MiB",
        "ecc_errors/volatile/dram_uncorrectable": "2",
        "ecc_errors/aggregate/sram_correctable": "103",
        "retired_pages/double_bit_retirement/retired_count": "11",
        "remapped_rows/remapped_row_pending": "Yes",
        "remapped_rows/row_remapper_histogram/row_remapper_histogram_max": "2550 bank(s)",
        "temperature/gpu_temp_tlimit": "26 C",
        "temperature/memory_temp": "72 C",
        "gpu_power_readings/instant_power_draw": "640.51 W",
        "clocks/sm_clock": "1756 MHz",
        "applications_clocks/mem_clock": "2618 MHz",
    }
    assert {path: gpu.findtext(path) for path in expected} == expected
    assert [info.findtext("pid") for info in gpu.findall("processes/process_info")] == ["4242", "4243", "17"]


def test_a_lost_gpu_stays_in_the_xml(switch_on: _SwitchOn) -> None:
    lost = make_gpu(
        1, faults=(CallFault("*", code=15, except_calls=("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo*")),)
    )
    done = run(switch_on(make_machine(make_gpu(0), lost)), "nvidia-smi", "-q", "-x")
    gpu = ElementTree.fromstring(done.stdout).findall("gpu")[1]
    assert (gpu.findtext("uuid"), gpu.findtext("fan_speed")) == (lost.readings["uuid"], "GPU is lost")
    assert done.returncode == 15


def test_the_table_shows_each_gpu_and_process(switch_on: _SwitchOn) -> None:
    lines = run(switch_on(make_machine(make_gpu(0), make_gpu(1))), "nvidia-smi").stdout.splitlines()
    assert len({len(line) for line in lines[1:]}) == 1
    text = "\n".join(lines)
    assert text.count("640.51W / 690.00W") == 2
    assert text.count(" 4242 ") == 2
