"""`gpudiag simulate`: programs run on the machine as in a shell, and nothing outlives it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpudiag.errors import UsageError
from gpudiag.linux.proc import is_alive
from gpudiag.simulate.faults.table import FAULTS
from gpudiag.simulate.nvml.library import build_library
from tests.warm_start import run_python

TIME_LIMIT_SECONDS = 60  # proves that a command ends; none needs a tenth of it
HANG = "import pynvml as N; N.nvmlInit(); print('started', flush=True); N.nvmlDeviceGetName(N.nvmlDeviceGetHandleByIndex({}))"


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Skip, loudly, where the library cannot be built."""
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated machines need a C compiler: {error.message}")


def simulate(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """`gpudiag simulate ARGUMENTS`, run to its end."""
    ended = run_python(("-m", "gpudiag", "simulate", *arguments), os.environ, TIME_LIMIT_SECONDS, stdin)
    return subprocess.CompletedProcess(arguments, ended.status, ended.out, ended.err)


@contextmanager
def simulating(*arguments: str, program: str = "") -> Iterator[subprocess.Popen[str]]:
    """`gpudiag simulate ARGUMENTS` (or that Python program), killed at the end if it still runs."""
    command = ["-c", program] if program else ["-m", "gpudiag", "simulate"]
    with subprocess.Popen(
        [sys.executable, *command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_until_dead(*pids: int) -> None:
    """Wait until none of the processes lives."""
    deadline = time.monotonic() + TIME_LIMIT_SECONDS
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"still alive: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.02)


def signals(pid: int, field: str) -> set[int]:
    """The signals in that field of the process's status: SigBlk (blocked), ShdPnd (sent, not yet taken)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = int(next(line for line in lines if line.startswith(field)).split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def wait_until_it_hangs(pid: int) -> None:
    """Wait until a program of that `gpudiag simulate` is in a call that hangs: there it blocks SIGQUIT."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    guardian = guardian_of(pid)
    programs = [int(child) for child in children.read_text().split() if int(child) != guardian]
    deadline = time.monotonic() + TIME_LIMIT_SECONDS
    while not any(signal.SIGQUIT in signals(program, "SigBlk") for program in programs):
        assert time.monotonic() < deadline, "it never hung"
        time.sleep(0.02)


def interrupt(pid: int) -> None:
    """Send SIGINT, and wait until it is taken: two that wait count as one."""
    os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + TIME_LIMIT_SECONDS
    while signal.SIGINT in signals(pid, "ShdPnd"):
        assert time.monotonic() < deadline, "the interrupt is not taken"
        time.sleep(0.02)


def guardian_of(pid: int) -> int:
    """The guardian process of a running `gpudiag simulate`."""
    deadline = time.monotonic() + TIME_LIMIT_SECONDS
    while time.monotonic() < deadline:  # it gives itself its name a moment after its start
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "gpudiag-guard\n":
                return int(child)
        time.sleep(0.02)
    raise AssertionError(f"process {pid} has no guardian")


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_programs_exit_status_is_passed_on(script: str, status: int) -> None:
    assert simulate("t4x1", "--", "sh", "-c", script).returncode == status


def test_standard_streams_are_the_programs() -> None:
    done = simulate("t4x1", "--", "sh", "-c", "cat; echo oops >&2", stdin="hello\n")
    assert (done.stdout, done.stderr, done.returncode) == ("hello\n", "oops\n", 0)


@pytest.mark.parametrize("dashes", [("--",), ()], ids=["with dashes", "without"])
def test_gpudiag_itself_runs_there(dashes: tuple[str, ...]) -> None:
    done = simulate("h100x8", *dashes, "gpudiag", "list", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["simulated"], len(document["devices"])) == (0, "h100x8", 8)


def test_gpudiag_is_on_the_path_of_programs_there() -> None:
    done = simulate("t4x1", "--", "sh", "-c", "gpudiag list --json")
    assert json.loads(done.stdout)["simulated"] == "t4x1"


def test_without_a_command_the_machine_is_described() -> None:
    done = simulate("h100x8+lost:3+hang:5")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert max(map(len, lines)) <= 80
    assert "answers 15" in next(line for line in lines if "00000000:86:00.0" in line)
    assert "hangs" in next(line for line in lines if "00000000:a8:00.0" in line)
    words = done.stdout.split()
    assert [kind.usage for kind in FAULTS if kind.usage not in words] == []
    assert [word for word in ("lost:3:", "hang:5:") if word not in words] == []


def test_what_to_try_is_there_to_be_tried() -> None:
    tried = [line.split(" -- ")[1] for line in simulate("h100x8").stdout.splitlines() if " -- " in line]
    assert tried
    assert [simulate("h100x8", "--", *command.split()).returncode for command in tried] == [0] * len(tried)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("h100x9",), "h100x8"),
        (("h100x8+lots:3",), "lost"),
        (("h100x8+lost:8",), "lost:8"),
        ((), "a100x8"),
        (("h100x8", "--", "no-such-program"), "no-such-program"),
        (("none", "--", "nvidia-smi"), "nvidia-smi"),
        (("h100x8", "--", "/etc/passwd"), "/etc/passwd"),
    ],
    ids=["machine", "fault", "gpu", "nothing", "program", "tool", "not a program"],
)
def test_a_mistake_is_one_sentence_and_status_2(arguments: tuple[str, ...], sentence: str) -> None:
    done = simulate(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.startswith("gpudiag: ")
    assert len(done.stderr.splitlines()) <= 2


def test_the_machine_is_gone_at_the_end_with_what_was_left_running_on_it() -> None:
    done = simulate("t4x1", "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $! $GPUDIAG_HOST_ROOT")
    pid, root = done.stdout.split()
    assert done.returncode == 0
    wait_until_dead(int(pid))
    assert not Path(root).parent.exists()


def test_a_signal_goes_to_the_program_and_its_answer_counts() -> None:
    script = "trap 'echo ended; exit 9' TERM; echo ready; while :; do sleep 0.02; done"
    with simulating("t4x1", "--", "sh", "-c", script) as process:
        assert first_line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=TIME_LIMIT_SECONDS)
    assert (out, process.returncode) == ("ended\n", 9)


def test_a_program_that_a_signal_ends_is_reported_as_shells_do() -> None:
    with simulating("t4x1", "--", "sh", "-c", "echo ready; exec sleep 1000") as process:
        assert first_line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIME_LIMIT_SECONDS)
    assert process.returncode == 143


def test_three_interrupts_end_a_program_that_hangs() -> None:
    with simulating(
        "h100x8+hang-call:2:nvmlDeviceGetName", "--", sys.executable, "-c", HANG.format(2)
    ) as process:
        assert first_line(process) == "started"
        wait_until_it_hangs(process.pid)
        for _ in range(3):
            assert process.poll() is None
            interrupt(process.pid)
        _, err = process.communicate(timeout=TIME_LIMIT_SECONDS)
    assert process.returncode == 137
    assert "interrupt again" in err


def test_an_interrupt_while_the_machine_goes_away_leaves_nothing_of_it() -> None:
    program = """
import os, shutil, signal, sys
from gpudiag.simulate import run_program
from gpudiag.simulate import session as session_folder
from gpudiag.simulate.loader import load_scenario
class Impatient:
    def rmtree(self, *arguments, **options):
        if str(os.getpid()) in str(arguments[0]):
            os.kill(os.getpid(), signal.SIGINT)
        shutil.rmtree(*arguments, **options)
session_folder.shutil = Impatient()
sys.exit(run_program.run_on_machine(load_scenario(sys.argv[1]), sys.argv[2:]))
"""
    show = "import os; print(os.environ['GPUDIAG_HOST_ROOT'])"
    with simulating("t4x1", sys.executable, "-c", show, program=program) as process:
        out, _ = process.communicate(timeout=TIME_LIMIT_SECONDS)
    assert process.returncode == 0
    assert not Path(out.strip()).parent.exists()


def test_what_asks_for_the_end_is_followed_by_a_kill() -> None:
    program = """
import sys
from gpudiag.simulate import run_program
from gpudiag.simulate.loader import load_scenario
run_program._GRACE_SECONDS = 0.3
sys.exit(run_program.run_on_machine(load_scenario(sys.argv[1]), sys.argv[2:]))
"""
    machine = "h100x8+hang-call:2:nvmlDeviceGetName"
    with simulating(machine, sys.executable, "-c", HANG.format(2), program=program) as process:
        assert first_line(process) == "started"
        wait_until_it_hangs(process.pid)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIME_LIMIT_SECONDS)
    assert process.returncode == 137


# Prints its own pid, that of a grandchild which hangs in NVML, and the root of the machine.
_FAMILY = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {HANG.format(2)!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(os.getpid(), child.pid, os.environ["GPUDIAG_HOST_ROOT"], flush=True)
time.sleep(1000)
"""


def test_after_a_kill_of_gpudiag_nothing_is_left() -> None:
    machine = "h100x8+hang-call:2:nvmlDeviceGetName"
    with simulating(machine, "--", sys.executable, "-c", _FAMILY) as process:
        pid, grandchild, root = first_line(process).split()
        guardian = guardian_of(process.pid)
        process.kill()
        process.communicate(timeout=TIME_LIMIT_SECONDS)
    wait_until_dead(int(pid), int(grandchild), guardian)
    assert not Path(root).parent.exists()


def test_after_a_kill_of_gpudiag_and_its_guardian_the_next_start_cleans_up() -> None:
    machine = "h100x8+hang-call:2:nvmlDeviceGetName"
    with simulating(machine, "--", sys.executable, "-c", _FAMILY) as process:
        pid, grandchild, root = first_line(process).split()
        os.kill(guardian_of(process.pid), signal.SIGKILL)
        process.kill()
        process.wait(timeout=TIME_LIMIT_SECONDS)
    wait_until_dead(int(pid))
    assert simulate("t4x1", "--", "true").returncode == 0
    wait_until_dead(int(grandchild))
    assert not Path(root).parent.exists()


def test_a_kill_of_the_guardian_alone_changes_nothing() -> None:
    script = "echo $PPID; sleep 0.5; echo done"
    with simulating("t4x1", "--", "sh", "-c", script) as process:
        os.kill(guardian_of(int(first_line(process))), signal.SIGKILL)
        out, _ = process.communicate(timeout=TIME_LIMIT_SECONDS)
    assert (out, process.returncode) == ("done\n", 0)


def test_a_lost_gpu_keeps_its_row_of_nvidia_smi_in_line() -> None:
    rows = simulate("h100x8+lost:3", "--", "nvidia-smi").stdout.splitlines()[1:]
    assert len({len(row) for row in rows}) == 1
    assert sum("ERR!" in row for row in rows) == 2  # the two lines of that GPU
