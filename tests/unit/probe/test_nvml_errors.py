import pynvml
import pytest

from gpudiag.model.device import SourceState
from gpudiag.model.reading import MissingReason
from gpudiag.probe.nvml.ask import REASON_OF_CODE, STATE_OF_INIT_CODE, code_of, reason_of, state_of_init
from gpudiag.probe.sheet import Absent
from tests.walking import walk

CODES = {name: value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
REASONS = {reason.value for reason in MissingReason} - {"not_asked"}


@walk(sorted(CODES))
def test_every_error_of_pynvml_is_a_reason_and_keeps_its_number(name):
    error = pynvml.NVMLError(CODES[name])
    reason, detail = reason_of(error)
    assert reason in REASONS
    assert code_of(error) == CODES[name]
    assert reason in ("not_supported", "function_not_found") or f"(NVML {CODES[name]})" in detail


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NOT_SUPPORTED", "not_supported"),
        ("NO_PERMISSION", "no_permission"),
        ("FUNCTION_NOT_FOUND", "function_not_found"),
        ("ARGUMENT_VERSION_MISMATCH", "function_not_found"),
        ("GPU_IS_LOST", "device_lost"),
        ("RESET_REQUIRED", "reset_required"),
        ("DEPRECATED", "not_supported"),
        ("UNKNOWN", "error"),
        ("CORRUPTED_INFOROM", "source_absent"),
    ],
)
def test_what_the_codes_that_people_meet_mean(name, reason):
    assert reason_of(pynvml.NVMLError(CODES[f"NVML_ERROR_{name}"]))[0] == reason


def test_the_tables_know_no_code_that_pynvml_does_not():
    newer = {30}  # NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, which the oldest pynvml that serves does not name
    assert set(REASON_OF_CODE) | set(STATE_OF_INIT_CODE) <= set(CODES.values()) | newer


@walk(sorted(CODES))
def test_every_error_of_nvml_init_is_a_state_that_says_that_nvml_does_not_work(name):
    state = SourceState(state_of_init(pynvml.NVMLError(CODES[name])))
    assert state not in (SourceState.OK, SourceState.NO_DEVICES, SourceState.NOT_ASKED)


def test_five_broken_drivers_are_five_states():
    names = ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH", "NO_PERMISSION", "UNKNOWN")
    states = [state_of_init(pynvml.NVMLError(CODES[f"NVML_ERROR_{name}"])) for name in names]
    assert states == ["library_absent", "driver_not_loaded", "version_mismatch", "no_permission", "failed"]


def test_success_as_an_error_is_no_value():
    assert reason_of(pynvml.NVMLError(0)) == ("error", "NVML reported success and gave no value")


def test_a_code_of_the_future_is_an_error_with_its_number():
    reason, detail = reason_of(pynvml.NVMLError(4711))
    assert reason == "error"
    assert "4711" in detail


def test_other_exceptions_than_nvmls_are_reasons_too():
    assert reason_of(pynvml.NVMLLibraryMismatchError("old"))[0] == "function_not_found"
    assert reason_of(AttributeError("nvmlDeviceGetNew"))[0] == "function_not_found"
    assert reason_of(Absent("timed_out", "late")) == ("timed_out", "late")
    assert reason_of(ValueError("x")) == ("error", "ValueError: x")
    assert state_of_init(ImportError("no pynvml")) == "library_absent"
    assert state_of_init(ValueError("x")) == "failed"
