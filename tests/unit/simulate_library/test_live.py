"""A machine changes while programs run on it: readings, faults, events; what is called is counted."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpudiag.simulate.scenario import CallFault, Scenario
from gpudiag.simulate.session import Session
from tests.unit.simulate_library.machines import ask, make_gpu, make_machine, run, start

_SwitchOn = Callable[[Scenario], Session]

# Prints one line for each line that it is sent.
_ECHO = """
import sys
import pynvml as N
N.nvmlInit()
handle = N.nvmlDeviceGetHandleByIndex(0)
for _ in sys.stdin:
    try:
        print(N.nvmlDeviceGetTemperature(handle, 0), flush=True)
    except N.NVMLError as error:
        print("code", error.value, flush=True)
"""

# Prints the events of GPU 0 as they come: 1.5 seconds without one end it.
_LISTEN = """
import pynvml as N
N.nvmlInit()
handle = N.nvmlDeviceGetHandleByIndex(0)
events = N.nvmlEventSetCreate()
N.nvmlDeviceRegisterEvents(handle, N.nvmlEventTypeXidCriticalError, events)
while True:
    try:
        event = N.nvmlEventSetWait_v2(events, 1500)
    except N.NVMLError_Timeout:
        break
    print(event.eventType, event.eventData, N.nvmlDeviceGetUUID(event.device)[:12], flush=True)
N.nvmlEventSetFree(events)
print("done", flush=True)
"""


def test_a_program_sees_a_reading_and_a_fault_change(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine(make_gpu(temperature_celsius=40)))
    with start(session, sys.executable, "-c", _ECHO) as program:
        assert program.stdin is not None
        assert program.stdout is not None

        def look() -> str:
            print(file=program.stdin, flush=True)
            return program.stdout.readline().strip()

        assert look() == "40"
        for temperature in (55, 90):
            session.update(make_machine(make_gpu(temperature_celsius=temperature)))
            assert look() == str(temperature)
        session.update(make_machine(make_gpu(faults=(CallFault("*", code=15),))))
        assert look() == "code 15"
        session.update(make_machine())
        assert look() == "61"
        program.stdin.close()
    assert program.returncode == 0


def test_an_update_does_not_start_the_count_of_a_fault_again(switch_on: _SwitchOn) -> None:
    sick = make_gpu(faults=(CallFault("nvmlDeviceGetTemperature", code=999, nth=3),))
    session = switch_on(make_machine(sick))
    with start(session, sys.executable, "-c", _ECHO) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        seen = []
        for temperature in (61, 62, 63, 64):
            session.update(
                make_machine(replace(sick, readings={**sick.readings, "temperature_celsius": temperature}))
            )
            print(file=program.stdin, flush=True)
            seen.append(program.stdout.readline().strip())
        program.stdin.close()
    assert seen == ["61", "62", "code 999", "64"]


def test_a_hundred_updates_leave_one_state_mapped(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine())
    with start(session, sys.executable, "-c", _ECHO) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for temperature in range(100):
            session.update(make_machine(make_gpu(temperature_celsius=temperature)))
            print(file=program.stdin, flush=True)
            assert program.stdout.readline() == f"{temperature}\n"
        maps = Path(f"/proc/{program.pid}/maps").read_text()
        program.stdin.close()
    assert maps.count("nvml.state") == 1


def test_xids_are_delivered_once_and_in_order(switch_on: _SwitchOn) -> None:
    machine = make_machine(make_gpu(0, xid_codes=(31,)), make_gpu(1, xid_codes=(13,)))
    session = switch_on(machine)
    with start(session, sys.executable, "-c", _LISTEN) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "8 31 GPU-00000000\n"
        for codes in ((31, 79), (31, 79, 79)):
            session.update(make_machine(make_gpu(0, xid_codes=codes), make_gpu(1, xid_codes=(13, 94))))
            assert program.stdout.readline() == "8 79 GPU-00000000\n"
        assert program.stdout.read() == "done\n"
    assert program.returncode == 0


def test_only_wanted_kinds_of_events_are_delivered(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine(make_gpu(xid_codes=(79,))))
    listening = _LISTEN.replace("N.nvmlEventTypeXidCriticalError", "N.nvmlEventTypePState").replace(
        "1500", "50"
    )
    assert run(session, sys.executable, "-c", listening).stdout == "done\n"


def test_calls_are_counted_over_programs(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine())
    for _ in range(2):
        ask(session, "[N.nvmlDeviceGetName(gpu()), N.nvmlDeviceGetName(gpu())]")
    counts = session.call_counts()
    assert counts == {
        "nvmlInitWithFlags": 2,
        "nvmlDeviceGetHandleByIndex_v2": 4,
        "nvmlDeviceGetName": 4,
    }


def test_calls_are_logged_where_the_environment_names_a_file(switch_on: _SwitchOn, tmp_path: Path) -> None:
    log = tmp_path / "calls.log"
    gpus = (make_gpu(0), make_gpu(1, faults=(CallFault("nvmlDeviceGetName", code=15),)))
    session = switch_on(make_machine(*gpus))
    ask(session, "code(N.nvmlDeviceGetName, gpu(1))", GPUDIAG_SIMULATED_CALL_LOG=str(log))
    lines = [re.sub(r"^\d+\.\d{9} \d+ ", "", line) for line in log.read_text().splitlines()]
    assert lines == [
        "nvmlInitWithFlags - 0",
        "nvmlDeviceGetHandleByIndex_v2 - 0",
        "nvmlDeviceGetName 16 15",
    ]


def test_threads_and_updates_do_not_disturb_each_other(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine())
    program = """
import threading
import pynvml as N
N.nvmlInit()
handle = N.nvmlDeviceGetHandleByIndex(0)
wrong = []
print("ready", flush=True)
def look():
    for _ in range(20000):
        memory = N.nvmlDeviceGetMemoryInfo(handle, version=N.nvmlMemory_v2)
        if memory.total != memory.used + memory.free + memory.reserved:
            wrong.append(memory)
threads = [threading.Thread(target=look) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(wrong), flush=True)
"""
    total, reserved = 85_520_809_984, 502_857_728
    with start(session, sys.executable, "-c", program) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        step = 0
        while running.poll() is None:
            step += 1
            used = step * 1_048_576
            session.update(
                make_machine(make_gpu(memory_used_bytes=used, memory_free_bytes=total - used - reserved))
            )
        assert running.stdout.read() == "0\n"
    assert step > 1
