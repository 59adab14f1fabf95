"""Every fault changes what it names, and nothing else; two that cannot both be are refused."""

from dataclasses import dataclass, field, replace

import pytest

from gpudiag.errors import UsageError
from gpudiag.reference.declaration import Activity
from gpudiag.reference.readings import READINGS
from gpudiag.simulate.faults.table import FAULTS, parse_faults
from gpudiag.simulate.loader import base_machines, load_scenario
from tests.unit.simulate_scenarios.machines import NOW, changed_readings, kernel_log, listed, machine

SPARED_BY_LOSS = {
    "uuid",
    "bus_id",
    "name",
    "serial",
    "numa_node",
    "pcie_generation_slot_max",
    "pcie_width_slot_max",
}
MEMORY = {"memory_used_bytes", "memory_free_bytes", "processes"}
ROW = {"row_remap_uncorrectable", "row_remap_pending", "row_remap_histogram"}
CLOCKS = {"graphics_clock_mhz", "sm_clock_mhz", "clocks_event_reasons"}


@dataclass(frozen=True)
class Case:
    """A fault on a machine: the GPU that it changes, and the readings and parts that it changes there."""

    spec: str
    readings: set[str] = field(default_factory=set)
    gpu: int = 1
    xids: tuple[int, ...] = ()
    parts: set[str] = field(default_factory=set)  # nvml, torch, environment, host, nvidia_smi_present
    calls: bool = False


CASES = (
    Case(
        "h100x8+busy:1",
        MEMORY
        | {
            "utilization_percent",
            *(one.name for one in READINGS if isinstance(one.question, Activity) and "fp64" not in one.name),
            "memory_utilization_percent",
            "temperature_celsius",
            "temperature_margin_celsius",
        }
        | {"memory_temperature_celsius", "power_draw_watts"}
        | CLOCKS,
        parts={"host", "torch"},
    ),
    Case("h100x8+idle-holder:1", MEMORY, parts={"host", "torch"}),
    Case("h100x8+zombie:1", MEMORY, parts={"host", "torch"}),
    Case(
        "h100x8+hot:1",
        {
            "temperature_celsius",
            "temperature_margin_celsius",
            "memory_temperature_celsius",
            "clocks_event_reasons",
        },
    ),
    Case("h100x8+throttle:1", {"clocks_event_reasons"}),
    Case("h100x8+power-cap:1", {"power_limit_watts", "power_limit_enforced_watts", "clocks_event_reasons"}),
    Case(
        "h100x8+ecc:1",
        {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "ecc_locations", "recovery_action"} | ROW,
        xids=(48, 63, 154),
        parts={"host"},
    ),
    Case("h100x8+ecc-corrected:1", {"ecc_corrected_volatile", "ecc_corrected_aggregate", "ecc_locations"}),
    Case("h100x8+row-remap-pending:1", ROW, xids=(63,), parts={"host"}),
    Case(
        "h100x8+row-remap-failed:1",
        {"row_remap_failed", "row_remap_histogram", "recovery_action"},
        xids=(64, 154),
        parts={"host"},
    ),
    Case(
        "t4x1+retired-pages:0",
        {"retired_pages_corrected", "retired_pages_uncorrected", "page_retirement_pending"},
        gpu=0,
        xids=(63,),
        parts={"host"},
    ),
    Case(
        "h100x8+ecc-off:1",
        {"ecc_mode", "ecc_mode_pending", "ecc_locations", "ecc_sram_threshold_exceeded"}
        | {
            f"ecc_{kind}_{span}"
            for kind in ("corrected", "uncorrected")
            for span in ("volatile", "aggregate")
        },
    ),
    Case("h100x8+mig-pending:1", {"mig_mode_pending"}),
    Case("h100x8+compute-prohibited:1", {"compute_mode"}, parts={"torch"}),
    Case("h100x8+recovery:1:node_reboot", {"recovery_action"}, xids=(154,), parts={"host"}),
    Case("h100x8+pcie-width:1", {"pcie_width"}, parts={"host"}),
    Case("h100x8+pcie-gen:1", {"pcie_generation"}, parts={"host"}),
    Case("h100x8+nvlink-down:1:4", {"nvlinks"}),
    Case("h100x8+nvlink-errors:1", {"nvlinks"}),
    Case("h100x8+slow:1:0.5", calls=True),
    Case("h100x8+hang-call:1:nvmlDeviceGetPowerUsage", calls=True),
    Case("h100x8+xid:1:31", xids=(31,), parts={"host"}),
    Case("h100x8+init-slow:2.5", parts={"nvml"}),
    Case("h100x8+init-hang", parts={"nvml", "torch"}),
    Case("h100x8+no-driver", parts={"nvml", "torch", "host"}),
    Case("h100x8+nouveau", parts={"nvml", "torch", "host"}),
    Case("h100x8+no-library", parts={"nvml", "torch", "nvidia_smi_present"}),
    Case("h100x8+version-mismatch", parts={"nvml", "torch", "host"}),
    Case("h100x8+no-permission", parts={"nvml", "torch"}),
    Case("rtx4090x2+cuda-broken", parts={"torch"}),
    Case("h100x8+cpu-torch", parts={"torch"}),
    Case("h100x8+no-torch", parts={"torch"}),
    Case("h100x8+order", parts={"torch"}),
    Case("h100x8+visible:5,2", parts={"torch", "environment"}),
)
# These change all of a GPU, or which GPUs there are; they have tests of their own below.
ELSEWHERE = {"lost", "hang", "gone", "zero-gpus", "old-driver", "cold", "driver-costs", "job-hangs"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.spec)
def test_a_fault_changes_what_it_names_and_nothing_else(case: Case):
    before, after = machine(case.spec.split("+")[0]), machine(case.spec)
    for index, (healthy, sick) in enumerate(zip(listed(before), listed(after), strict=True)):
        here = index == case.gpu
        assert changed_readings(healthy, sick) == (case.readings if here else set())
        assert sick.xid_codes == (case.xids if here else ())
        assert (sick.faults != healthy.faults) is (case.calls and here)
    parts = {
        part
        for part in ("nvml", "torch", "environment", "nvidia_smi_present")
        if getattr(before, part) != getattr(after, part)
    }
    parts |= {"host"} if before.host != after.host else set()
    assert parts == case.parts


def test_every_fault_has_such_a_case():
    covered = {case.spec.split("+")[1].split(":")[0] for case in CASES}
    assert covered | ELSEWHERE == {kind.name for kind in FAULTS}


def test_a_cold_driver_takes_its_time_for_the_first_handle_of_every_gpu_one_after_the_other():
    for gpu in listed(machine("h100x8+cold:3")):
        (fault,) = gpu.faults
        assert (fault.call, fault.delay_seconds, fault.in_turn, fault.nth) == (
            "nvmlDeviceGetHandleBy*",
            3.0,
            True,
            1,
        )
        assert gpu.readings["persistence_mode"] == "disabled"


@pytest.mark.parametrize("case", [case for case in CASES if case.xids], ids=lambda case: case.spec)
def test_an_xid_is_in_the_kernel_log_of_its_gpu(case: Case):
    scenario = machine(case.spec)
    address = listed(scenario)[case.gpu].readings["bus_id"][4:].rsplit(".", 1)[0]
    logged = [line for line in kernel_log(scenario) if "Xid" in line]
    assert len(logged) == len(case.xids)
    for line, code in zip(logged, case.xids, strict=True):
        assert line.startswith(f"NVRM: Xid (PCI:{address}): {code},")


@pytest.mark.parametrize(
    ("spec", "action"),
    [
        ("h100x8+xid:1:95", "gpu_reset"),
        ("h100x8+ecc:1", "gpu_reset"),
        ("h100x8+xid:1:95+recovery:1:node_reboot", "node_reboot"),
        ("h100x8+xid:1:94", "none"),
        ("h100x8+xid:1:31", "none"),
        ("h100x8", "none"),
    ],
)
def test_the_driver_asks_for_what_its_xids_take(spec: str, action: str):
    scenario = machine(spec)
    assert listed(scenario)[1].readings["recovery_action"] == action
    asked = [line for line in kernel_log(scenario) if ": 154," in line]
    assert len(asked) == (action != "none")


def test_a_lost_gpu_takes_a_reboot_which_only_the_kernel_log_can_show():
    (line,) = [line for line in kernel_log(machine("h100x8+lost:3")) if ": 154," in line]
    assert "Node Reboot Required" in line


@pytest.mark.parametrize("spec", ["a100x8+xid:1:95", "t4x1+xid:0:48", "h100x8+lost:3"])
def test_a_driver_from_before_the_recovery_action_asks_for_nothing(spec: str):
    assert any(": 154," in line for line in kernel_log(machine(spec)))
    assert not any(": 154," in line for line in kernel_log(machine(f"{spec}+old-driver")))


def test_a_lost_gpu_keeps_its_name_and_its_place():
    before, after = machine("h100x8"), machine("h100x8+lost:3")
    lost = listed(after)[3]
    asked = set(listed(before)[3].readings) - {"nvml_index"}
    assert {name for name in asked if name in lost.readings} == SPARED_BY_LOSS
    assert set(lost.missing.values()) == {"device_lost", "not_asked"}
    assert lost.missing["responding"] == "device_lost"
    assert lost.faults[0].code == 15
    assert "nvmlDeviceGetUUID" in lost.faults[0].except_calls
    assert lost.xid_codes == (79, 154)
    assert listed(after)[4] == listed(before)[4]
    device = next(path for path in after.host.files if path.endswith("0000:86:00.0/current_link_width"))
    assert after.host.files[device] == "63\n"
    assert len([view for view in after.torch["devices"] if view.get("context_starts")]) == 7


def test_a_hung_gpu_hangs_every_call_and_cuda_with_it():
    before, after = machine("h100x8"), machine("h100x8+hang:6")
    hung = listed(after)[6]
    assert hung.faults[0].hang
    assert hung.faults[0].call == "*"
    assert hung.missing["name"] == hung.missing["responding"] == "timed_out"
    assert after.torch["facts"]["missing"]["device_count"] == "timed_out"
    assert after.host == before.host, "the kernel's own files still answer"


def test_a_gone_gpu_is_nowhere():
    before, after = machine("h100x8"), machine("h100x8+gone:3")
    address = listed(before)[3].readings["bus_id"][4:]
    assert len(after.gpus) == 7
    assert not any(address in path for path in (*after.host.files, *after.host.links))
    assert "nvidia3" not in after.host.nodes
    assert listed(after)[3].readings["uuid"] == listed(before)[4].readings["uuid"]


def test_gone_counts_on_the_whole_machine():
    after = machine("h100x8+gone:2+gone:3+hot:5")
    hot = [gpu for gpu in after.gpus if "hw_slowdown" in gpu.readings["clocks_event_reasons"]]
    assert [gpu.readings["uuid"] for gpu in hot] == [machine("h100x8").gpus[5].readings["uuid"]]


def test_gpus_that_did_not_start_are_on_the_bus_and_in_no_list():
    after = machine("h100x8+zero-gpus")
    assert listed(after) == []
    assert len(after.gpus) == 8
    assert after.nvml.init_code == 0
    assert after.torch["facts"]["cuda_available"] is False
    information = [text for path, text in after.host.files.items() if path.endswith("/information")]
    assert len(information) == 8
    assert all("GPU-????????" in text for text in information)


@pytest.mark.parametrize(
    ("base", "version", "symbol"),
    [
        ("t4x1", "470.256.02", "nvmlDeviceGetMemoryInfo_v2"),
        ("a100x8", "470.256.02", "nvmlDeviceGetCurrentClocksEventReasons"),
        ("h100x8", "525.147.05", "nvmlDeviceGetTemperatureV"),
        ("b200x8", "570.86.15", "nvmlDeviceGetRepairStatus"),
    ],
)
def test_an_old_driver_is_one_that_runs_the_gpu(base: str, version: str, symbol: str):
    before, after = machine(base), machine(f"{base}+old-driver")
    assert after.nvml.driver_version == version
    assert symbol in after.nvml.omitted_symbols
    assert version in after.host.files["proc/driver/nvidia/version"]
    for healthy, old in zip(before.gpus, after.gpus, strict=True):
        new_reasons = {old.missing[name] for name in changed_readings(healthy, old) if name in old.missing}
        assert new_reasons <= {"function_not_found", "not_supported"}


def test_r470_counts_what_it_reserves_as_used():
    before, after = machine("t4x1").gpus[0].readings, machine("t4x1+old-driver").gpus[0]
    assert (
        after.readings["memory_used_bytes"] == before["memory_used_bytes"] + before["memory_reserved_bytes"]
    )
    assert after.missing["memory_reserved_bytes"] == "function_not_found"


def test_cuda_behind_nvswitches_breaks_with_the_fabric_manager():
    before, after = machine("h100x8"), machine("h100x8+cuda-broken")
    assert "Error 802" in after.torch["facts"]["missing_detail"]["context_starts"]
    assert after.torch["facts"]["device_count"] == 8
    assert {gpu.readings["fabric"]["state"] for gpu in after.gpus} == {"in_progress"}
    gone = set(before.host.files) - set(after.host.files)
    assert gone == {f"proc/2101/{name}" for name in ("cmdline", "comm", "status", "stat", "cgroup")}


def test_no_driver_leaves_no_trace_but_the_bus():
    after = machine("h100x8+no-driver")
    assert after.nvml.init_code == 9
    assert not any("nvidia" in node for node in after.host.nodes)
    assert not any(path.startswith("proc/driver/nvidia") for path in after.host.files)
    assert "nvidia" not in after.host.files["proc/modules"]
    assert not any(target.endswith("/nvidia") for target in after.host.links.values())
    assert machine("h100x8+nouveau").host.files["proc/modules"].endswith("0x0000000000000000\n")


def test_the_order_of_writing_does_not_matter():
    one, other = machine("h100x8+busy:3+hot:3+power-cap:4"), machine("h100x8+power-cap:4+hot:3+busy:3")
    assert replace(one, name="") == replace(other, name="")


def test_a_busy_gpu_that_is_hot_is_both():
    readings = machine("h100x8+busy:3+hot:3").gpus[3].readings
    assert readings["utilization_percent"] == 98
    assert readings["temperature_margin_celsius"] < -2
    assert "hw_thermal_slowdown" in readings["clocks_event_reasons"]


TRAINING = "h100x8+busy:0+busy:1+busy:2+busy:3"


def test_gpus_of_a_job_that_hangs_read_as_those_that_were_recorded():
    before, after = machine(TRAINING), machine(f"{TRAINING}+job-hangs")
    waiting, absent = after.gpus[0].readings, after.gpus[2].readings
    assert waiting["utilization_percent"] == 100
    # 124 W of 700 W on an H100 whose ranks waited for one that was stopped (tests/corpus/hang/gpu).
    assert 115 < waiting["power_draw_watts"] < 135
    assert absent["utilization_percent"] == 0
    assert waiting["temperature_celsius"] < before.gpus[0].readings["temperature_celsius"]
    assert after.gpus[4].readings == before.gpus[4].readings
    assert before.jobs is None
    (job,) = after.jobs
    assert job["host"] == after.hostname
    assert {rank["pid"] for rank in job["ranks"]} == {
        gpu.readings["processes"][0]["pid"] for gpu in after.gpus[:4]
    }


def test_processes_have_a_user_a_command_and_a_start():
    scenario = machine("h100x8+busy:0+idle-holder:1+zombie:2")
    busy, idle, dead = (gpu.readings["processes"][0] for gpu in scenario.gpus[:3])
    assert (busy["user"], busy["command"]) == ("ann", "python train.py --config llama-7b.yaml")
    assert busy["started_at"] == "2026-11-20T15:00:00.000Z"
    assert idle["user"] == "bob"
    assert scenario.host.links[f"proc/{idle['pid']}/fd/3"] == "/dev/nvidia1"
    assert (dead["state"], dead["command"]) == ("Z", "[python]")
    assert "bob:x:1001" in scenario.host.files["etc/passwd"]


def test_a_container_does_not_know_the_hosts_processes():
    scenario = machine("h100x8-container2+busy:0")
    process = listed(scenario)[0].readings["processes"][0]
    assert process["visible"] is False
    assert process["missing"]["user"] == "source_absent"
    assert f"proc/{process['pid']}/stat" not in scenario.host.files


def test_a_process_on_a_mig_gpu_is_in_an_instance():
    readings = machine("h100-mig+busy:0").gpus[0].readings
    assert readings["processes"][0]["gpu_instance_id"] == readings["mig_instances"][0]["gpu_instance_id"]
    instance = readings["mig_instances"][0]
    assert instance["memory_used_bytes"] + instance["memory_free_bytes"] == instance["memory_total_bytes"]
    assert "utilization_percent" not in readings


SAMPLE = ("lost", "hang", "hot", "busy", "xid:0:43", "gone", "slow:0:0.1", "compute-prohibited", "throttle")


@pytest.mark.parametrize("fault", SAMPLE)
def test_faults_fit_every_machine_with_a_gpu(fault: str):
    for name in base_machines():
        if name == "none" or (name == "vgpu" and fault in ("hot", "throttle")):  # which a guest cannot read
            continue
        text = fault if ":" in fault else f"{fault}:0"
        scenario = machine(f"{name}+{text}")
        assert scenario != machine(name)
        assert scenario.faults[0].startswith(text)


BAD = (
    ("h100x9", "h100x8"),
    ("h100x8+losst:3", "lost"),
    ("h100x8+lost", "lost:N"),
    ("h100x8+lost:", "lost:N"),
    ("h100x8+lost:3:4", "lost:N"),
    ("h100x8+lost:x", "lost:N"),
    ("h100x8+slow:1", "slow:N:SECONDS"),
    ("h100x8+slow:1:soon", "slow:N:SECONDS"),
    ("h100x8+xid:1:0", "xid:N:CODE"),
    ("h100x8+recovery:1:pray", "gpu_reset"),
    ("h100x8+hang-call:1:cudaMalloc", "nvmlDeviceGetPowerUsage"),
    ("h100x8+hang-call:1:nvmlDeviceGetPowerUse", "nvmlDeviceGetPowerUsage"),
    ("", ""),
)


@pytest.mark.parametrize(("spec", "hint"), BAD, ids=[spec for spec, _ in BAD])
def test_what_is_not_there_names_what_is(spec: str, hint: str):
    with pytest.raises(UsageError) as raised:
        load_scenario(spec, now=NOW)
    assert hint in raised.value.hint


IMPOSSIBLE = (
    ("h100x8+lost:8", "GPUs 0 to 7"),
    ("t4x1+lost:1", "GPU 0 only"),
    ("none+lost:0", "no GPU"),
    ("none+no-driver", "no GPU"),
    ("none+cuda-broken", "CPU build"),
    ("h100x8-container2+lost:2", "GPUs 0 to 1"),
    ("gb10+ecc:0", "ecc_uncorrected_volatile"),
    ("rtx4090x2+ecc:0", "not supported"),
    ("h100x8+retired-pages:0", "retired_pages_uncorrected"),
    ("t4x1+row-remap-pending:0", "row_remap_pending"),
    ("t4x1+nvlink-down:0", "NVLink"),
    ("h100x8+nvlink-down:0:18", "0 to 17"),
    ("b200x8+nvlink-errors:0", "counters"),
    ("gb10+pcie-width:0", "PCIe"),
    ("gb10+old-driver", "NVIDIA GB10"),
    ("t4x1+order", "two GPUs"),
    ("wsl2-rtx+nouveau", "kernel modules"),
    ("wsl2-rtx+version-mismatch", "kernel driver"),
    ("t4x1+mig-pending:0", "mig_mode"),
)


@pytest.mark.parametrize(("spec", "words"), IMPOSSIBLE, ids=[spec for spec, _ in IMPOSSIBLE])
def test_a_fault_that_cannot_be_gives_the_reason(spec: str, words: str):
    with pytest.raises(UsageError) as raised:
        load_scenario(spec, now=NOW)
    assert words in raised.value.message


@pytest.mark.parametrize(
    "faults",
    [
        ("lost:3", "lost:3"),
        ("lost:3", "hang:3"),
        ("lost:3", "hot:3"),
        ("gone:1", "busy:1"),
        ("busy:1", "idle-holder:1"),
        ("slow:1:0.1", "slow:1:0.2"),
        ("no-driver", "no-library"),
        ("zero-gpus", "init-hang"),
        ("cpu-torch", "no-torch"),
    ],
)
def test_faults_that_exclude_each_other_are_refused(faults: tuple[str, str]):
    with pytest.raises(UsageError) as raised:
        parse_faults(faults)
    assert all(fault in raised.value.message for fault in faults)


@pytest.mark.parametrize(
    "faults",
    [
        ("lost:3", "hang:4"),
        ("lost:3", "xid:3:79"),
        ("xid:1:13", "xid:1:31"),
        ("nvlink-down:1:2", "nvlink-down:1:3"),
    ],
)
def test_faults_that_can_both_be_are_both_there(faults: tuple[str, str]):
    assert {fault.text for fault in parse_faults(faults)} == set(faults)


def test_every_fault_is_described_in_a_line():
    for kind in FAULTS:
        assert kind.description
        assert len(f"  {kind.usage:<22} {kind.description}") <= 80


def test_no_fault_makes_a_reading_of_the_wrong_kind():
    for kind in FAULTS:
        argument = {"N:ACTION": "0:gpu_reset", "N:FUNCTION": "0:nvmlDeviceGetName", "N:SECONDS": "0:1"}
        argument |= {"N:CODE": "0:62", "SECONDS": "1", "LIST": "0", "": ""}
        text = argument.get(kind.arguments, "0")
        base = "t4x1" if kind.name == "retired-pages" else "a100x8"
        base = TRAINING.replace("h100x8", base) if kind.name == "job-hangs" else base
        assert machine(f"{base}+{kind.name}{':' if text else ''}{text}").faults
