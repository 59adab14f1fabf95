from collections import Counter
from dataclasses import MISSING, fields
from types import SimpleNamespace

import pynvml
import pytest

from gpudiag.model.device import Device
from gpudiag.model.reading import is_without_word
from gpudiag.probe.nvml.ask import Ask, DeviceSheet
from gpudiag.probe.nvml.device import read_device
from gpudiag.reference.vocabulary import reasons_of
from tests.unit.probe.fake_nvml import (
    FUNCTION_NOT_FOUND,
    LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    VERSION_MISMATCH,
    FakeNvml,
    Raises,
)

GIB = 1024**3
MEMORY_V1 = SimpleNamespace(total=80 * GIB, used=3 * GIB, free=77 * GIB)
MEMORY_V2 = SimpleNamespace(total=80 * GIB, used=2 * GIB, free=77 * GIB, reserved=GIB)
# Filled by the parent: from the PCI bus, from torch, or by what the row as a whole says.
NOT_NVMLS = {"id", "responding", "numa_node", "pcie_generation_slot_max", "pcie_width_slot_max"}
REQUIRED = {field.name for field in fields(Device) if field.default is MISSING} - NOT_NVMLS


def memory(version=None):
    return MEMORY_V2 if version else MEMORY_V1


def process(pid, used=GIB, gpu_instance=0xFFFFFFFF):
    return SimpleNamespace(
        pid=pid, usedGpuMemory=used, gpuInstanceId=gpu_instance, computeInstanceId=0xFFFFFFFF
    )


def read(answers=(), **options):
    nvml = FakeNvml(answers, **options)
    sheet = DeviceSheet()
    read_device(Ask(nvml, "handle"), sheet)
    return sheet


def reason(sheet, field):
    return sheet.missing[field][0]


def test_every_reading_of_a_device_is_a_value_or_a_reason():
    sheet = read()
    assert set(sheet.values) | set(sheet.missing) >= REQUIRED
    assert {why for why, _ in sheet.missing.values()} == {"not_supported"}


def test_memory_has_its_reserved_part_apart():
    sheet = read({"nvmlDeviceGetMemoryInfo": memory})
    assert sheet.values["memory_used_bytes"] == 2 * GIB
    assert sheet.values["memory_reserved_bytes"] == GIB
    assert sheet.values["memory_kind"] == "dedicated"


@pytest.mark.parametrize("code", [FUNCTION_NOT_FOUND, VERSION_MISMATCH])
def test_an_old_driver_counts_the_reserved_part_as_used(code):
    def old(version=None):
        if version:
            raise pynvml.NVMLError(code)
        return MEMORY_V1

    sheet = read({"nvmlDeviceGetMemoryInfo": old})
    assert sheet.values["memory_used_bytes"] == 3 * GIB
    assert reason(sheet, "memory_reserved_bytes") == "function_not_found"


def test_a_total_of_zero_is_no_memory():
    sheet = read({"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=0, used=0, free=0, reserved=0)})
    assert reason(sheet, "memory_total_bytes") == "not_supported"
    assert reason(sheet, "memory_kind") == "not_supported"


def test_the_older_temperature_is_asked_where_the_newer_is_not_there():
    answers = {"nvmlDeviceGetTemperatureV": Raises(FUNCTION_NOT_FOUND), "nvmlDeviceGetTemperature": 41}
    assert read(answers).values["temperature_celsius"] == 41
    older_pynvml = read({"nvmlDeviceGetTemperature": 41}, absent={"nvmlDeviceGetTemperatureV"})
    assert older_pynvml.values["temperature_celsius"] == 41


def test_power_is_that_of_the_instant_or_else_the_average():
    assert read({"nvmlDeviceGetPowerUsage": 70_000}, fields={186: 68_920}).values["power_draw_watts"] == 68.92
    assert read({"nvmlDeviceGetPowerUsage": 70_000}).values["power_draw_watts"] == 70.0
    without_fields = {
        "nvmlDeviceGetFieldValues": Raises(FUNCTION_NOT_FOUND),
        "nvmlDeviceGetPowerUsage": 70_000,
    }
    assert read(without_fields).values["power_draw_watts"] == 70.0


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, []),
        (0x1, ["gpu_idle"]),
        (0x48, ["hw_slowdown", "hw_thermal_slowdown"]),
        (0x1000, ["bit_12"]),
    ],
)
def test_event_reasons_are_the_bits_of_the_mask(mask, words):
    assert reasons_of(mask) == words


def test_event_reasons_have_an_older_name():
    answers = {
        "nvmlDeviceGetCurrentClocksEventReasons": Raises(FUNCTION_NOT_FOUND),
        "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
    }
    assert read(answers).values["clocks_event_reasons"] == ["sw_power_cap"]


@pytest.mark.parametrize(
    ("function", "answer", "field", "expected"),
    [
        ("nvmlDeviceGetPerformanceState", 32, "pstate", "not_supported"),
        ("nvmlDeviceGetSerial", "0", "serial", "not_supported"),
        ("nvmlDeviceGetCurrPcieLinkWidth", 0, "pcie_width", "error"),
        ("nvmlDeviceGetPerformanceState", 16, "pstate", "error"),
        ("nvmlDeviceGetArchitecture", 0xFFFFFFFF, "architecture", "not_supported"),
        ("nvmlDeviceGetBrand", 0, "brand", "not_supported"),
        ("nvmlDeviceGetFanSpeed", Raises(NO_PERMISSION), "fan_speed_percent", "no_permission"),
    ],
)
def test_an_answer_that_is_none_is_a_reason(function, answer, field, expected):
    assert reason(read({function: answer}), field) == expected


def test_zero_is_an_answer():
    utilization = SimpleNamespace(gpu=0, memory=0)
    answers = {"nvmlDeviceGetUtilizationRates": utilization, "nvmlDeviceGetPerformanceState": 0}
    sheet = read({**answers, "nvmlDeviceGetFanSpeed": 0}, fields={3: 0})
    for field in ("utilization_percent", "pstate", "fan_speed_percent", "ecc_corrected_volatile"):
        assert sheet.values[field] == 0


def test_ecc_counts_come_by_place_where_the_gpu_has_them():
    def count(error, counter, location):
        if location not in (2, 7):
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return 5 if (error, counter, location) == (1, 0, 7) else 0

    sheet = read({"nvmlDeviceGetMemoryErrorCounter": count}, fields={3: 0, 4: 5, 5: 0, 6: 5})
    places = {place["location"]: place for place in sheet.values["ecc_locations"]}
    assert set(places) == {"dram", "sram"}
    assert places["sram"]["uncorrected_volatile"] == 5


def test_without_ecc_no_place_is_asked():
    nvml = FakeNvml()
    sheet = DeviceSheet()
    read_device(Ask(nvml, "handle"), sheet)
    assert reason(sheet, "ecc_locations") == "not_supported"
    assert "nvmlDeviceGetMemoryErrorCounter" not in nvml.calls


@pytest.mark.parametrize(
    ("number", "action"), [(0, "none"), (1, "gpu_reset"), (4, "drain_and_reset"), (7, "system_reboot")]
)
def test_the_recovery_action_is_the_drivers(number, action):
    assert read(fields={230: number}).values["recovery_action"] == action


@pytest.mark.parametrize(
    ("function", "answer", "field", "expected"),
    [
        ("nvmlDeviceGetArchitecture", 14, "architecture", "unknown_14"),
        ("nvmlDeviceGetBrand", 20, "brand", "unknown_20"),
        ("nvmlDeviceGetComputeMode", 17, "compute_mode", "unknown_17"),
        ("nvmlDeviceGetPersistenceMode", 2, "persistence_mode", "unknown_2"),
        ("nvmlDeviceGetEccMode", [1, 2], "ecc_mode_pending", "unknown_2"),
        ("nvmlDeviceGetMigMode", [3, 0], "mig_mode", "unknown_3"),
        ("nvmlDeviceGetCurrentClocksEventReasons", 1 << 11, "clocks_event_reasons", ["bit_11"]),
        ("nvmlDeviceGetGspFirmwareMode", [2, 1], "gsp_firmware_mode", "unknown_2"),
    ],
)
def test_a_number_without_a_word_is_kept(function, answer, field, expected):
    values = read({function: (lambda *_: answer) if "Gsp" in function else answer}).values
    assert values[field] == expected
    assert all(map(is_without_word, expected if isinstance(expected, list) else [expected]))


def test_a_recovery_action_of_the_future_is_not_none():
    assert read(fields={230: 12}).values["recovery_action"] == "unknown_12"


def test_a_corrupted_inforom_is_known_whichever_call_says_so():
    sheet = read({"nvmlDeviceGetBoardPartNumber": Raises(14)})
    assert sheet.values["inforom_valid"] is False
    assert reason(sheet, "board_part_number") == "source_absent"
    assert "inforom_valid" not in sheet.missing


def test_a_gpu_that_wants_a_reset_is_asked_nothing_more_and_is_not_lost():
    sheet = read({"nvmlDeviceGetPersistenceMode": Raises(16)})
    assert reason(sheet, "persistence_mode") == "reset_required"
    assert reason(sheet, "processes") == "reset_required"


def test_nvlinks_are_counted_by_the_driver():
    answers = {
        "nvmlDeviceGetNvLinkState": lambda link: int(link != 2),
        "nvmlDeviceGetNvLinkErrorCounter": lambda link, counter: counter,
    }
    links = read(answers, fields={91: 4}).values["nvlinks"]
    assert [(link["link"], link["active"]) for link in links] == [(0, True), (1, True), (2, False), (3, True)]
    assert links[0]["crc_data_errors"] == 3
    absent = ("remote_bus_id", "recovery_failures", "bit_error_rate")
    assert links[0]["missing"] == dict.fromkeys(absent, "not_supported")


HOPPER = {
    "nvmlDeviceGetNvLinkState": 1,
    "nvmlDeviceGetNvLinkErrorCounter": lambda link, counter: 100 * link + counter,
    "nvmlDeviceGetNvLinkRemotePciInfo": lambda link: SimpleNamespace(busId=b"00000000:05:00.0"),
    "nvmlDeviceGetArchitecture": 9,
    "nvmlDeviceValidateInforom": None,
}
# replay, recovery, CRC of flits, CRC of data: the first field of links 0 to 5 and of 6 to 11 (nvml.h)
ROWS = ((46, 108), (53, 114), (32, 96), (39, 102))


def link_fields(count):
    """The fields by which a driver answers for its links as the single calls do."""
    by_scope = {(165, link): 1 for link in range(count)}
    counters = {
        rows[link // 6] + link % 6: 100 * link + counter
        for counter, rows in enumerate(ROWS)
        for link in range(min(count, 12))
    }
    return {91: count, **by_scope, **counters}


def links_and_calls(fields, look=1):
    """The links of a GPU, and how often each of their functions was called in the last of so many looks."""
    pynvml = FakeNvml(HOPPER, fields)
    ask = Ask(pynvml, "handle")
    for _ in range(look):
        pynvml.calls.clear()
        ask.fields.clear()
        sheet = DeviceSheet()
        read_device(ask, sheet)
    calls = Counter(name for name in pynvml.calls if "NvLink" in name or "Inforom" in name)
    return sheet.values["nvlinks"], calls


def test_eighteen_links_cost_a_batch_and_what_no_field_has():
    links, calls = links_and_calls(link_fields(18))
    assert calls == {
        "nvmlDeviceGetNvLinkErrorCounter": 4 * 6,
        "nvmlDeviceGetNvLinkRemotePciInfo": 18,
        "nvmlDeviceValidateInforom": 1,
        "nvmlDeviceGetInforomImageVersion": 1,
    }
    one_by_one, _ = links_and_calls({91: 18})
    assert links == one_by_one


def test_a_driver_without_these_fields_is_asked_link_by_link():
    _, calls = links_and_calls({91: 18})
    assert calls["nvmlDeviceGetNvLinkState"] == 18
    assert calls["nvmlDeviceGetNvLinkErrorCounter"] == 4 * 18


def test_who_looks_again_and_again_validates_the_inforom_and_asks_where_links_lead_once():
    links, calls = links_and_calls(link_fields(18), look=3)
    assert calls == {"nvmlDeviceGetNvLinkErrorCounter": 4 * 6, "nvmlDeviceGetInforomImageVersion": 1}
    assert {link["remote_bus_id"] for link in links} == {"00000000:05:00.0"}


def test_a_link_number_that_stands_for_no_link_is_left_out():
    def state(link):
        if link > 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    old_driver = {"nvmlDeviceGetFieldValues": Raises(FUNCTION_NOT_FOUND), "nvmlDeviceGetNvLinkState": state}
    assert [link["link"] for link in read(old_driver).values["nvlinks"]] == [0, 1]


def test_a_gpu_without_nvlink_has_no_list():
    assert reason(read(fields={91: 0}), "nvlinks") == "not_supported"
    assert reason(read(), "nvlinks") == "not_supported"


def test_mig_indices_are_sparse():
    def handle(index):
        if index not in (0, 3):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"instance {index}"

    answers = {
        "nvmlDeviceGetMigMode": (1, 1),
        "nvmlDeviceGetMaxMigDeviceCount": 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": handle,
        "nvmlDeviceGetGpuInstanceId": 9,
    }
    sheet = read(answers)
    assert sheet.values["mig_mode"] == "enabled"
    assert [instance["gpu_instance_id"] for instance in sheet.values["mig_instances"]] == [9, 9]


def test_mig_that_is_off_has_no_instances_and_mig_that_is_not_there_has_no_list():
    assert read({"nvmlDeviceGetMigMode": (0, 0)}).values["mig_instances"] == []
    assert reason(read(), "mig_instances") == "not_supported"


def test_processes_are_listed_once_with_what_nvml_says():
    answers = {
        "nvmlDeviceGetComputeRunningProcesses_v3": [process(200, None), process(100, gpu_instance=3)],
        "nvmlDeviceGetGraphicsRunningProcesses_v3": [process(200), process(300)],
    }
    listed = read(answers).values["processes"]
    assert [(one["pid"], one["kind"]) for one in listed] == [
        (100, "compute"),
        (200, "compute"),
        (300, "graphics"),
    ]
    assert listed[0]["gpu_instance_id"] == 3
    assert listed[1]["missing"]["memory_used_bytes"] == "not_supported"


def test_an_old_driver_lists_processes_by_the_older_call():
    answers = {
        "nvmlDeviceGetComputeRunningProcesses_v3": Raises(FUNCTION_NOT_FOUND),
        "nvmlDeviceGetComputeRunningProcesses_v2": [process(100)],
    }
    assert [one["pid"] for one in read(answers).values["processes"]] == [100]


@pytest.mark.parametrize(("code", "expected"), [(NO_PERMISSION, "no_permission"), (UNKNOWN, "error")])
def test_a_process_list_that_fails_is_not_an_empty_one(code, expected):
    answers = {
        "nvmlDeviceGetComputeRunningProcesses_v3": Raises(code),
        "nvmlDeviceGetGraphicsRunningProcesses_v3": [],
    }
    assert reason(read(answers), "processes") == expected


def test_a_gpu_that_is_lost_half_way_keeps_who_it_is():
    answers = {
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetName": "H100",
        "nvmlDeviceGetVbiosVersion": Raises(LOST),
    }
    sheet = read(answers)
    assert sheet.values["uuid"] == "GPU-1"
    after = {"memory_total_bytes", "temperature_celsius", "nvlinks", "processes"}
    assert {reason(sheet, field) for field in after} == {"device_lost"}


def impossible_memory(**parts):
    return lambda version=None: SimpleNamespace(
        **{"total": 80 * GIB, "used": GIB, "free": 79 * GIB, "reserved": 0, **parts}
    )


@pytest.mark.parametrize(
    ("answers", "field"),
    [
        ({"nvmlDeviceGetTemperatureV": -1}, "temperature_celsius"),
        ({"nvmlDeviceGetTemperatureThreshold": -1}, "temperature_slowdown_celsius"),
        ({"nvmlDeviceGetTemperatureThreshold": -1}, "temperature_shutdown_celsius"),
        ({"nvmlDeviceGetFanSpeed": -1}, "fan_speed_percent"),
        ({"nvmlDeviceGetPowerUsage": -1}, "power_draw_watts"),
        ({"nvmlDeviceGetEnforcedPowerLimit": -1}, "power_limit_enforced_watts"),
        ({"nvmlDeviceGetClockInfo": -1}, "memory_clock_mhz"),
        ({"nvmlDeviceGetPcieReplayCounter": -1}, "pcie_replay_count"),
        ({"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=101, memory=5)}, "utilization_percent"),
        ({"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=-1, memory=5)}, "utilization_percent"),
        (
            {"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=5, memory=65535)},
            "memory_utilization_percent",
        ),
        ({"nvmlDeviceGetEncoderUtilization": (255, 0)}, "encoder_utilization_percent"),
        # github.com/NVIDIA/DCGM/issues/199 and dcgm-exporter/issues/418: now and then 905, 200,000 or 2^32 -
        # 2
        ({"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=905, memory=5)}, "utilization_percent"),
        ({"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0xFFFFFFFE, memory=5)}, "utilization_percent"),
        ({"nvmlDeviceGetDecoderUtilization": (808_334, 0)}, "decoder_utilization_percent"),
        ({"nvmlDeviceGetTemperatureV": 511}, "temperature_celsius"),
        ({"nvmlDeviceGetTemperatureV": -256}, "temperature_celsius"),  # rbonghi/jetson_stats/issues/350
        # github.com/flightlessmango/MangoHud/pull/2144: a counter in the place of the power
        ({"nvmlDeviceGetPowerUsage": 3_700_000_000}, "power_draw_watts"),
        ({"nvmlDeviceGetClockInfo": 4_000_000}, "sm_clock_mhz"),
        ({"nvmlDeviceGetMemoryInfo": impossible_memory(used=200 * GIB)}, "memory_used_bytes"),
        ({"nvmlDeviceGetMemoryInfo": impossible_memory(used=-1)}, "memory_used_bytes"),
        ({"nvmlDeviceGetMemoryInfo": impossible_memory(free=81 * GIB)}, "memory_free_bytes"),
    ],
)
def test_what_cannot_be_is_a_reason_and_no_value(answers, field):
    sheet = read(answers)
    assert field not in sheet.values
    assert "NVML answers" in sheet.missing[field][1]


@pytest.mark.parametrize("celsius", [2**63 - 1, 0x7FFFFFF0, 511, 0])
def test_a_memory_that_is_hotter_than_any_is_no_reading(celsius):
    """A T4's memory at 9223372036854776000 C: github.com/NVIDIA/gpu-monitoring-tools/issues/97."""
    sheet = read(fields={82: celsius})
    assert "memory_temperature_celsius" not in sheet.values
    assert "NVML answers" in sheet.missing["memory_temperature_celsius"][1]


def test_a_hot_board_that_draws_much_is_read():
    sheet = read(
        {"nvmlDeviceGetTemperatureV": 105, "nvmlDeviceGetClockInfo": 14_001}, fields={82: 110, 186: 2_700_000}
    )
    values = sheet.values
    assert (values["temperature_celsius"], values["memory_temperature_celsius"]) == (105, 110)
    assert (values["power_draw_watts"], values["memory_clock_mhz"]) == (2700.0, 14_001)


def test_a_margin_may_be_below_zero_and_a_full_gpu_is_full():
    answers = {
        "nvmlDeviceGetMarginTemperature": -3,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100, memory=0),
        "nvmlDeviceGetFanSpeed": 104,  # nvml.h: it may exceed 100 %
    }
    values = read(answers).values
    assert (values["temperature_margin_celsius"], values["utilization_percent"]) == (-3, 100)
    assert values["fan_speed_percent"] == 104


def test_a_mig_instance_with_more_used_than_it_has_has_no_used_memory():
    nvml = FakeNvml(
        {
            "nvmlDeviceGetMigMode": (1, 1),
            "nvmlDeviceGetMaxMigDeviceCount": 1,
            "nvmlDeviceGetMigDeviceHandleByIndex": "instance",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=10 * GIB, used=20 * GIB, free=GIB, reserved=0),
        }
    )
    sheet = DeviceSheet()
    read_device(Ask(nvml, "handle"), sheet)
    (instance,) = sheet.values["mig_instances"]
    assert instance["memory_total_bytes"] == 10 * GIB
    assert instance["missing"]["memory_used_bytes"] == "not_supported"


@pytest.mark.parametrize(
    "name", [b"\xf8NVIDIA GeForce", b"NVIDIA \x80\xff", "NVIDIA \u00ae".encode("latin-1")]
)
def test_a_name_that_is_no_text_costs_only_its_odd_bytes(name):
    """github.com/crystian/ComfyUI-Crystools/pull/66: byte 0xf8 at the start of a GPU's name."""

    def decoded():
        return name.decode()  # as pynvml does

    value = read({"nvmlDeviceGetName": decoded}).values["name"]
    assert "NVIDIA" in value
    assert "\ufffd" in value
