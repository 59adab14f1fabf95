import pynvml
import pytest

from gpudiag.probe.nvml.ask import Ask, DeviceSheet, as_text, bus_id_of, field_value, known
from gpudiag.probe.sheet import Absent
from tests.unit.probe.fake_nvml import (
    FUNCTION_NOT_FOUND,
    LOST,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    FakeNvml,
    Raises,
)
from tests.unit.probe.fake_nvml import field_value as make_field


def reason(read, *arguments):
    with pytest.raises(Absent) as caught:
        read(*arguments)
    return caught.value.reason


def undecodable():
    return b"Tesla\xff T4".decode()


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("NVIDIA H100", "NVIDIA H100"),
        (b"NVIDIA H100\0\0", "NVIDIA H100"),
        (b"G\xffP", "G\ufffdP"),
        (" T4 ", "T4"),
    ],
)
def test_text_comes_as_str_or_bytes(raw, text):
    assert as_text(lambda: raw) == text


def test_text_that_pynvml_cannot_decode_is_kept():
    assert as_text(undecodable) == "Tesla\ufffd T4"


@pytest.mark.parametrize("raw", ["", "N/A", "[N/A]", "Unknown", b"\0"])
def test_words_for_nothing_are_no_text(raw):
    assert reason(as_text, lambda: raw) == "not_supported"


@pytest.mark.parametrize("number", [0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF])
def test_all_ones_is_no_number(number):
    assert reason(known, number) == "not_supported"


def test_zero_is_a_number():
    assert known(0) == 0


@pytest.mark.parametrize(
    ("raw", "bus_id"),
    [
        ("00000000:5D:00.0", "00000000:5d:00.0"),
        (b"0000:5D:00.0", "00000000:5d:00.0"),
        ("000F:01:00.0", "0000000f:01:00.0"),
    ],
)
def test_a_bus_id_has_one_form(raw, bus_id):
    assert bus_id_of(raw) == bus_id


def test_a_bus_id_without_a_domain_is_none():
    assert reason(bus_id_of, "5D:00.0") == "error"


@pytest.mark.parametrize("value_type", range(7))
def test_a_field_is_read_by_its_type(value_type):
    assert field_value(make_field(82, 37, value_type=value_type)) == 37


@pytest.mark.parametrize(
    ("code", "expected"),
    [(2, "function_not_found"), (3, "not_supported"), (15, "device_lost"), (999, "error")],
)
def test_a_field_has_a_return_code_of_its_own(code, expected):
    assert reason(field_value, make_field(230, 1, code=code)) == expected


def test_a_field_of_an_unknown_type_is_no_number():
    assert reason(field_value, make_field(230, 1, value_type=9)) == "error"


def test_fields_come_from_one_call():
    nvml = FakeNvml(fields={82: 37, 230: 0})
    ask = Ask(nvml, "handle")
    ask.read_fields((82, 230, 91))
    assert (ask.field(82), ask.field(230)) == (37, 0)
    assert reason(ask.field, 91) == "not_supported"
    assert nvml.calls == ["nvmlDeviceGetFieldValues"]


def test_fields_are_asked_singly_where_the_driver_refuses_the_batch():
    def refuse_many(field_ids):
        if len(field_ids) > 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return [make_field(field_ids[0], 37)]

    ask = Ask(FakeNvml({"nvmlDeviceGetFieldValues": refuse_many}), "handle")
    with pytest.raises(pynvml.NVMLError):
        ask.read_fields((82, 230))
    assert ask.field(82) == 37


def test_a_driver_without_fields_has_none():
    ask = Ask(FakeNvml({"nvmlDeviceGetFieldValues": Raises(FUNCTION_NOT_FOUND)}), "handle")
    assert reason(ask.field, 82) == "function_not_found"


@pytest.mark.parametrize("unknown", [FUNCTION_NOT_FOUND, VERSION_MISMATCH, AttributeError("nvmlNewer")])
def test_the_older_question_is_asked_where_the_newer_is_unknown(unknown):
    ask = Ask(FakeNvml({"nvmlNewer": Raises(unknown), "nvmlOlder": 7}), "handle")
    assert ask.first_of(lambda: ask("nvmlNewer"), lambda: ask("nvmlOlder")) == 7


def test_the_older_question_is_not_asked_where_the_newer_has_an_answer():
    nvml = FakeNvml({"nvmlNewer": Raises(NOT_SUPPORTED), "nvmlOlder": 7})
    ask = Ask(nvml, "handle")
    with pytest.raises(pynvml.NVMLError_NotSupported):
        ask.first_of(lambda: ask("nvmlNewer"), lambda: ask("nvmlOlder"))
    assert nvml.calls == ["nvmlNewer"]


def test_a_lost_gpu_is_asked_nothing_more():
    nvml = FakeNvml({"nvmlName": "H100", "nvmlPower": Raises(LOST), "nvmlClock": 1980})
    ask, sheet = Ask(nvml, "handle"), DeviceSheet()
    for name in ("nvmlName", "nvmlPower", "nvmlClock"):
        sheet.read(name, ask, name)
    assert sheet.values == {"nvmlName": "H100"}
    assert {name: why for name, (why, _) in sheet.missing.items()} == {
        "nvmlPower": "device_lost",
        "nvmlClock": "device_lost",
    }
    assert "nvmlClock" not in nvml.calls
