import pytest

from gpudiag.model.reading import MissingReason
from gpudiag.probe import sheet
from gpudiag.probe.sheet import Absent, Sheet


def raising(error):
    def read():
        raise error

    return read


def test_the_words_for_reasons_are_those_of_the_model():
    words = {
        *(sheet.NOT_SUPPORTED, sheet.FUNCTION_NOT_FOUND, sheet.NO_PERMISSION, sheet.DEVICE_LOST),
        *(sheet.SOURCE_ABSENT, sheet.RESET_REQUIRED, sheet.TIMED_OUT, sheet.ERROR),
    }
    # It asked, and knows how long ago and who uses the GPU.
    of_the_parent = {MissingReason.NOT_ASKED, MissingReason.ATTACHING, MissingReason.IN_USE}
    assert words == {reason.value for reason in MissingReason if reason not in of_the_parent}


def test_a_sheet_holds_values_and_the_reason_for_each_absence():
    readings = Sheet()
    readings.read("name", lambda: "H100")
    readings.read_together(("used", "free"), lambda: (1, 2))
    readings.read("serial", raising(Absent(sheet.NOT_SUPPORTED)))
    readings.read("uuid", raising(Absent(sheet.ERROR, "odd")))
    assert readings.document() == {
        "name": "H100",
        "used": 1,
        "free": 2,
        "missing": {"serial": "not_supported", "uuid": "error"},
        "missing_detail": {"uuid": "odd"},
    }


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(), "source_absent"),
        (NotADirectoryError(), "source_absent"),
        (PermissionError(13, "no", "/proc/1/environ"), "no_permission"),
        (ValueError("x"), "error"),
        (OSError(5, "Input/output error"), "error"),
    ],
)
def test_what_reading_a_file_raises_is_a_reason(error, reason):
    readings = Sheet()
    readings.read("field", raising(error))
    assert readings.missing["field"][0] == reason


def test_one_reading_that_fails_costs_all_that_one_call_answers_and_no_other():
    readings = Sheet()
    readings.read_together(("used", "free"), raising(ValueError("x")))
    readings.read("name", lambda: "H100")
    assert set(readings.missing) == {"used", "free"}
    assert readings.values == {"name": "H100"}
