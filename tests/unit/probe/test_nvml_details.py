"""What NVML is asked for the checks alone."""

from types import SimpleNamespace

import pynvml
import pytest

from gpudiag.probe.nvml.ask import Ask, DeviceSheet
from gpudiag.probe.nvml.details import read_peer
from gpudiag.probe.nvml.device import parse_bit_error_rate, read_device
from tests.unit.probe.fake_nvml import NOT_SUPPORTED, FakeNvml, Raises


def read(answers=(), fields=(), **sheet_values):
    sheet = DeviceSheet()
    sheet.values.update(sheet_values)
    read_device(Ask(FakeNvml(answers, fields), object()), sheet)
    return sheet


def fabric(version: int = 3, **members: int):
    """An answer that fills in the struct of that version and refuses newer ones."""

    def answer(reference):
        info = reference._obj
        if type(info) is not getattr(pynvml, f"c_nvmlGpuFabricInfo_v{version}_t"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        for name, value in members.items():
            setattr(info, name, value)

    return {"nvmlDeviceGetGpuFabricInfoV": answer}


def test_a_corrupted_inforom_is_an_answer_and_any_other_error_is_none():
    assert read({"nvmlDeviceValidateInforom": None}).values["inforom_valid"] is True
    corrupted = Raises(pynvml.NVML_ERROR_CORRUPTED_INFOROM)
    assert read({"nvmlDeviceValidateInforom": corrupted}).values["inforom_valid"] is False
    assert read().missing["inforom_valid"][0] == "not_supported"


def test_throttle_times_are_in_seconds():
    def held(policy):
        if policy == 5:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return SimpleNamespace(violationTime=policy * 2_500_000_000)

    times = read({"nvmlDeviceGetViolationStatus": held}).values["throttle_seconds"]
    assert (times["power"], times["thermal"], times["board_limit"]) == (0.0, 2.5, 7.5)
    assert times["missing"] == {"reliability": "not_supported"}
    assert "throttle_seconds" in read().missing


def test_a_fabric_is_read_by_the_newest_form_that_the_driver_knows():
    newest = read(fabric(3, state=3, cliqueId=7, healthSummary=2, healthMask=1 << 4 | 2)).values["fabric"]
    assert (newest["state"], newest["status"], newest["clique_id"]) == ("completed", "success", 7)
    assert (newest["health"], newest["faults"]) == ("unhealthy", ["route_unhealthy"])
    older = read(fabric(2, state=2, healthMask=5 << 8 | 2)).values["fabric"]
    assert (older["state"], older["faults"]) == ("in_progress", ["insufficient_nvlinks"])
    assert older["missing"] == {"health": "not_supported"}
    assert read(fabric(3, state=0)).missing["fabric"][0] == "not_supported"


def test_a_link_that_is_up_has_a_speed():
    assert read(fields={90: 26562}).values["nvlink_bytes_per_second"] == 26.562e9
    assert read(fields={90: 0}).missing["nvlink_bytes_per_second"][0] == "not_supported"


def test_nvlink_five_says_more_of_each_link():
    links = [{"link": 0, "missing": {}}, {"link": 1, "missing": {}}]
    read(fields={(214, 0): 0, (214, 1): 2, (220, 0): 1 << 8 | 12}, nvlinks=links, architecture="blackwell")
    assert links[1]["recovery_failures"] == 2
    assert links[0]["bit_error_rate"] == pytest.approx(1e-12)
    assert links[1]["missing"] == {"bit_error_rate": "not_supported"}
    older = [{"link": 0, "missing": {}}]
    read(nvlinks=older, architecture="hopper")
    assert older == [{"link": 0, "missing": {}}]


def test_bit_error_rates_are_mantissa_and_exponent():
    assert parse_bit_error_rate(0) == 0.0
    assert parse_bit_error_rate(0x50E) == pytest.approx(5e-14)


def test_peers_are_asked_pair_by_pair():
    answers = {
        "nvmlDeviceGetTopologyCommonAncestor": lambda other: 50,
        "nvmlDeviceGetP2PStatus": lambda other, capability: 0 if capability == 0 else 5,
    }
    peer = read_peer(Ask(FakeNvml(answers), object()), "00000000:5d:00.0", "handle")
    assert (peer["bus_id"], peer["path"], peer["read"], peer["nvlink"]) == (
        "00000000:5d:00.0",
        "system",
        "ok",
        "not_supported",
    )


@pytest.mark.parametrize(("feature", "word"), [(0, "disabled"), (1, "enabled")])
def test_the_library_says_whether_copies_are_encrypted(feature: int, word: str):
    from gpudiag.probe.nvml.library import read_library

    answers = SimpleNamespace(
        nvmlSystemGetDriverVersion=lambda: "580.105.08",
        nvmlSystemGetNVMLVersion=lambda: "13.580.105.08",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13000,
        nvmlSystemGetConfComputeState=lambda: SimpleNamespace(ccFeature=feature),
    )
    assert read_library(answers)["confidential_computing"] == word
