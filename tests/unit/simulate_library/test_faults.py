"""Any call on any GPU answers any code, late, never, or from a given call on; symbols can be missing."""

import signal
import sys
import time
from collections.abc import Callable

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate.nvml.state import render_state
from gpudiag.simulate.scenario import CallFault, Scenario, SimulatedNvml
from gpudiag.simulate.session import Session
from tests.unit.simulate_library.machines import ask, make_gpu, make_machine, run, start

_SwitchOn = Callable[[Scenario], Session]
_NVML = make_machine().nvml


def with_nvml(**changes: object) -> Scenario:
    """A machine of two GPUs whose library is otherwise."""
    members = {name: getattr(_NVML, name) for name in SimulatedNvml.__dataclass_fields__}
    return make_machine(make_gpu(0), make_gpu(1), nvml=SimulatedNvml(**{**members, **changes}))


def faulty(*faults: CallFault) -> Scenario:
    """A machine of two GPUs of which the second has these faults."""
    return make_machine(make_gpu(0), make_gpu(1, faults=faults))


@pytest.mark.parametrize("code", [2, 3, 4, 6, 9, 10, 13, 14, 15, 16, 18, 25, 26, 999])
def test_a_call_answers_any_code_on_one_gpu_only(switch_on: _SwitchOn, code: int) -> None:
    session = switch_on(faulty(CallFault("nvmlDeviceGetPowerUsage", code=code)))
    expression = (
        "[code(N.nvmlDeviceGetPowerUsage, gpu(i)) for i in (0, 1)] + [code(N.nvmlDeviceGetName, gpu(1))]"
    )
    assert ask(session, expression) == [0, code, 0]


def test_a_star_hits_every_call_but_the_look_up_and_those_it_spares(switch_on: _SwitchOn) -> None:
    lost = CallFault("*", code=15, except_calls=("nvmlDeviceGetUUID", "nvmlDeviceGetPci*"))
    expression = """[code(call, gpu(1)) for call in (
        N.nvmlDeviceGetUUID, N.nvmlDeviceGetPciInfo, N.nvmlDeviceGetName, N.nvmlDeviceGetNumFans,
        N.nvmlDeviceGetComputeRunningProcesses)] + [code(N.nvmlDeviceGetFieldValues, gpu(1), [82])]"""
    assert ask(switch_on(faulty(lost)), expression) == [0, 0, 15, 15, 15, 15]


def test_a_look_up_fails_when_it_is_named(switch_on: _SwitchOn) -> None:
    session = switch_on(faulty(CallFault("nvmlDeviceGetHandleBy*", code=15)))
    uuids = [make_gpu(i).readings["uuid"] for i in (0, 1)]
    expression = f"""[code(N.nvmlDeviceGetHandleByIndex, i) for i in (0, 1)] + [
        code(N.nvmlDeviceGetHandleByUUID, uuid) for uuid in {uuids}]"""
    assert ask(session, expression) == [0, 15, 0, 15]


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        (CallFault("nvmlDeviceGetPowerUsage", code=999, nth=2), [0, 999, 0, 0]),
        (CallFault("nvmlDeviceGetPowerUsage", code=999, from_nth=3), [0, 0, 999, 999]),
        (CallFault("nvmlDeviceGetPower*", code=999, nth=1), [999, 0, 0, 0]),
    ],
    ids=["nth", "from_nth", "prefix"],
)
def test_a_fault_counts_the_calls_that_it_matches(
    switch_on: _SwitchOn, fault: CallFault, codes: list[int]
) -> None:
    uuid = make_gpu(0).readings["uuid"]  # a look-up of the other GPU is no call on this one
    expression = f"""(handle := N.nvmlDeviceGetHandleByIndex(1), N.nvmlDeviceGetHandleByUUID({uuid!r}),
        [code(N.nvmlDeviceGetPowerUsage, handle) for _ in range(4)])[-1]"""
    assert ask(switch_on(faulty(fault)), expression) == codes


def test_the_first_fault_that_hits_decides(switch_on: _SwitchOn) -> None:
    faults = (
        CallFault("nvmlDeviceGetPowerUsage", code=4, nth=1),
        CallFault("nvmlDevice*", code=15, except_calls=("nvmlDeviceGetHandleBy*",)),
    )
    expression = "[code(N.nvmlDeviceGetPowerUsage, gpu(1)) for _ in range(2)]"
    assert ask(switch_on(faulty(*faults)), expression) == [4, 15]


def test_a_late_call_answers_as_usual(switch_on: _SwitchOn) -> None:
    session = switch_on(faulty(CallFault("nvmlDeviceGetTemperature", delay_seconds=0.3)))
    timed = "(t := time.monotonic(), N.nvmlDeviceGetTemperature(gpu({}), 0), time.monotonic() - t)[1:]"
    expression = f"(time := __import__('time'), {timed.format(1)}, {timed.format(0)})[1:]"
    [late, late_seconds], [usual, usual_seconds] = ask(session, expression)
    assert late == usual
    assert late_seconds >= 0.3
    assert late_seconds > usual_seconds


def test_a_hung_call_blocks_its_thread_alone_and_only_sigkill_ends_it(switch_on: _SwitchOn) -> None:
    session = switch_on(faulty(CallFault("nvmlDeviceGetName", hang=True)))
    program = """
import threading, time
import pynvml as N
N.nvmlInit()
sick, healthy = (N.nvmlDeviceGetHandleByIndex(i) for i in (1, 0))
threading.Thread(target=N.nvmlDeviceGetName, args=(sick,), daemon=True).start()
time.sleep(0.2)
print(N.nvmlDeviceGetName(healthy), N.nvmlDeviceGetPowerUsage(sick), flush=True)
N.nvmlDeviceGetName(sick)
print("it came back", flush=True)
"""
    with start(session, sys.executable, "-c", program) as hung:
        assert hung.stdout is not None
        assert hung.stdout.readline() == "NVIDIA H100 80GB HBM3 640512\n"
        time.sleep(0.3)  # it is in the second call now
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            hung.send_signal(number)
        time.sleep(0.3)
        assert hung.poll() is None
        hung.kill()
        assert hung.stdout.read() == ""
    assert hung.returncode == -signal.SIGKILL


def test_a_reading_that_timed_out_hangs_by_itself_and_in_a_batch_of_fields(switch_on: _SwitchOn) -> None:
    gpu = make_gpu(missing={"memory_temperature_celsius": "timed_out"}, memory_temperature_celsius=None)
    session = switch_on(make_machine(gpu))
    program = """
import pynvml as N
N.nvmlInit()
handle = N.nvmlDeviceGetHandleByIndex(0)
print(N.nvmlDeviceGetFieldValues(handle, [N.NVML_FI_DEV_POWER_INSTANT])[0].nvmlReturn, flush=True)
N.nvmlDeviceGetFieldValues(handle, [N.NVML_FI_DEV_POWER_INSTANT, N.NVML_FI_DEV_MEMORY_TEMP])
print("it came back", flush=True)
"""
    with start(session, sys.executable, "-c", program) as hung:
        assert hung.stdout is not None
        assert hung.stdout.readline() == "0\n"
        time.sleep(0.5)
        assert hung.poll() is None
        hung.kill()
        assert hung.stdout.read() == ""


def test_a_fault_of_the_library_hits_every_gpu(switch_on: _SwitchOn) -> None:
    session = switch_on(with_nvml(faults=(CallFault("nvmlDeviceGetMemoryInfo*", code=3),)))
    expression = (
        "[code(N.nvmlDeviceGetMemoryInfo, gpu(i)) for i in (0, 1)] + [code(N.nvmlDeviceGetName, gpu())]"
    )
    assert ask(session, expression) == [3, 3, 0]


@pytest.mark.parametrize("code", [4, 9, 18, 999])
def test_init_answers_its_code_and_nothing_works_after_it(switch_on: _SwitchOn, code: int) -> None:
    session = switch_on(with_nvml(init_code=code))
    expression = "[code(N.nvmlInit), code(N.nvmlDeviceGetCount), code(N.nvmlShutdown)]"
    assert ask(session, expression, init=False) == [code, 1, 1]


def test_versions_are_answered_before_init(switch_on: _SwitchOn) -> None:
    """As nvidia-smi needs it, to print the versions that do not match."""
    session = switch_on(with_nvml(init_code=18))
    program = """
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
text, number = ctypes.create_string_buffer(80), ctypes.c_int()
print(library.nvmlSystemGetNVMLVersion(text, 80), text.value.decode())
print(library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number)), number.value)
print(library.nvmlSystemGetDriverVersion(text, 80))
"""
    done = run(session, sys.executable, "-c", program)
    assert done.stdout.splitlines() == ["0 13.580.105.08", "0 13000", "1"]


def test_init_can_be_slow(switch_on: _SwitchOn) -> None:
    session = switch_on(with_nvml(init_delay_seconds=0.3))
    expression = "(time := __import__('time'), t := time.monotonic(), N.nvmlInit(), time.monotonic() - t)[-1]"
    assert ask(session, expression, init=False) >= 0.3


def test_init_is_counted(switch_on: _SwitchOn) -> None:
    expression = """(N.nvmlInit(), N.nvmlInit(), N.nvmlShutdown(), [
        code(N.nvmlDeviceGetCount), N.nvmlShutdown(), code(N.nvmlDeviceGetCount), code(N.nvmlShutdown)])[-1]"""
    assert ask(switch_on(make_machine()), expression, init=False) == [0, None, 1, 1]


def test_an_omitted_symbol_is_not_found_by_the_linker(switch_on: _SwitchOn) -> None:
    omitted = (
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    )
    session = switch_on(with_nvml(omitted_symbols=omitted))
    program = f"""
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
print([hasattr(library, name) for name in {omitted!r}])
print([hasattr(library, name) for name in (
    "nvmlDeviceGetTemperature", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v2")])
"""
    done = run(session, sys.executable, "-c", program)
    assert done.stdout.splitlines() == ["[False, False, False]", "[True, True, True]"]
    expression = """[code(N.nvmlDeviceGetTemperatureV, gpu(), 0), code(N.nvmlDeviceGetTemperature, gpu(), 0),
        code(N.nvmlDeviceGetMemoryInfo, gpu(), version=N.nvmlMemory_v2), code(N.nvmlDeviceGetMemoryInfo, gpu())]"""
    assert ask(session, expression) == [13, 0, 13, 0]


@pytest.mark.parametrize("call", ["nvmlDeviceGetNonsense", "cuda*", ""])
def test_a_fault_of_no_function_is_the_callers_mistake(call: str) -> None:
    with pytest.raises(UsageError):
        render_state(faulty(CallFault(call, code=15)))
