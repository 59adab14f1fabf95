"""A signal at any moment of a command's start ends it with the signal's status, and no word of a bug.

The moments are imports, which is what a start is made of: the signal is sent as a module begins to be loaded.
"""

import subprocess
import sys

import pytest

from gpudiag.errors import ExitStatus

pytestmark = pytest.mark.timeout(300)
PROGRAM = """
import os, signal, sys
order, last, number, moment = [], sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def look(event, arguments):
    if event == "import":
        order.append(arguments[0])
        if len(order) == moment:
            os.kill(os.getpid(), number)
        if arguments[0] == last and not number:
            print(len(order), flush=True)
            os._exit(0)
del sys.argv[1:4]
sys.addaudithook(look)
from gpudiag.cli.main import run
run()
"""
IN_A_CALLBACK = """
import os, signal, sys, time
from gpudiag.cli.signals import TerminatedError, end_quietly, raise_again
number, place = int(sys.argv[1]), sys.argv[2]
end_quietly()
raise_again()
class Dropped:
    def __del__(self):
        os.kill(os.getpid(), number)
if place == "fork":
    os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), number))
try:
    if place == "fork":
        if not os.fork():
            os._exit(0)
    else:
        Dropped()
    time.sleep(60)
except (KeyboardInterrupt, TerminatedError) as error:
    print(type(error).__name__)
"""
MOMENTS = 12  # of each signal
# The command, and the module that is loaded last before it does its work.
SERVE = (("serve", "--port", "0"), "uvicorn.protocols.http.httptools_impl")
OTHERS = ((("explain", "xid", "79"), "gpudiag.explain.recipe"), (("hang",), "gpudiag.runs.hang"))
SIGNALS = {
    2: (
        ExitStatus.INTERRUPTED,
        ([], ["gpudiag: interrupted"]),
    ),  # while nothing but loading was done: not a word
    15: (ExitStatus.TERMINATED, (["gpudiag: terminated"],)),
}


def begin(command, last, number, moment, state):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, last, str(number), str(moment), *command],
        env={"PATH": "/usr/bin:/bin", "GPUDIAG_STATE_DIR": str(state), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def count_moments(command, last, state):
    """How many modules the command loads up to the last of its start."""
    done = begin(command, last, 0, 0, state)
    assert done.stdout.strip().isdecimal(), (command, done.stdout, done.stderr)
    return int(done.stdout)


def try_serve(places_of, state):
    """Send a signal at each of those places of the start of the service, SIGTERM and SIGINT in turn."""
    command, last = SERVE
    for at, place in enumerate(places_of(count_moments(command, last, state))):
        try_at(command, last, (15, 2)[at % 2], place, state)


def try_at(command, last, number, moment, state):
    done = begin(command, last, number, moment, state)
    status, allowed = SIGNALS[number]
    told = [line for line in done.stderr.splitlines() if not line.startswith(("gpudiag serve:", "  "))]
    assert (done.returncode, told in allowed) == (status, True), (command, number, moment, done.stderr)


def dense(_count):
    """From the modules of our own entry on, where the command line's own parser is loaded: before, the interpreter starts."""
    return range(30, 30 + 7 * MOMENTS, 7)


def spread(count):
    return [count * place // MOMENTS for place in range(1, MOMENTS + 1)]


def test_a_signal_while_the_service_starts_ends_it_with_its_status_and_one_line(tmp_path):
    try_serve(lambda count: [*dense(count)[::2], *spread(count)[1::2]], tmp_path)


@pytest.mark.sliced
@pytest.mark.parametrize("places", [dense, spread])
def test_a_signal_at_any_moment_while_the_service_starts(places, tmp_path):
    try_serve(places, tmp_path)


@pytest.mark.sliced
@pytest.mark.parametrize(("command", "last"), OTHERS)
def test_a_signal_while_another_command_starts(command, last, tmp_path):
    count = count_moments(command, last, tmp_path)
    for before in (0, 20):
        try_at(command, last, 15, count - before, tmp_path)


@pytest.mark.parametrize("place", ["fork", "__del__"])
@pytest.mark.parametrize(("number", "name"), [(2, "KeyboardInterrupt"), (15, "TerminatedError")])
def test_a_signal_that_python_drops_in_a_callback_comes_again(number, name, place):
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CALLBACK, str(number), place],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{name}\n", "")


AT_THE_END = """
import time
from gpudiag.cli import signals
signals.end_quietly()
signals.raise_again()
signals._since[2] = time.monotonic()  # it came within an import, which was the command's last
signals._send_soon()
signals.end_quietly()
time.sleep(0.5)
print("ended")
"""


def test_a_signal_that_waits_at_the_end_of_a_command_does_not_end_it_by_an_alarm():
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
