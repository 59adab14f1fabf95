"""A signal at any moment of a command, or several, end it with a right status, a sentence at most, and
nothing left.

The moments of a start are imports: the signal is sent as a module begins to be loaded. Later ones are those
of its work, and, where signals go on coming until it has ended, of its end.
"""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpudiag.errors import ExitStatus
from gpudiag.linux.proc import is_alive
from tests.api.serving import descendants
from tests.cli.simulated import TIME_LIMIT_SECONDS, simulated_machine
from tests.warm_start import start_python

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
def send_second(frame, event, argument):
    if frame.f_code.co_name == "_send_dropped_again":
        sys.setprofile(None)
        os.kill(os.getpid(), number)
if place == "report":
    sys.setprofile(send_second)
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
    # While nothing but loading was done: not a word.
    2: (
        ExitStatus.INTERRUPTED,
        ([], ["gpudiag: interrupted"]),
    ),
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
    """From the modules of our own entry on, where the command line's own parser is loaded: before, the
    interpreter starts.
    """
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


@pytest.mark.parametrize("place", ["fork", "__del__", "report"])
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


INT, TERM = signal.SIGINT, signal.SIGTERM
ENDS = {
    "INT": (INT,),
    "TERM": (TERM,),
    "INT TERM": (INT, TERM),
    "TERM INT": (TERM, INT),
    "INT until it has ended": (INT, None),
    "TERM until it has ended": (TERM, None),
}
READY = ("sh", "-c", "echo ready; exec sleep 600")
# What a rank of a launcher is, to `gpudiag hang`.
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


class Running:
    """A command in its own process session, on a terminal if it wants one."""

    def __init__(
        self, words: tuple[str, ...], environment: dict[str, str], log: Path, on_terminal: bool
    ) -> None:
        self._log, self._terminal = log, None
        with log.open("wb") as output, open(os.devnull) as nothing:
            files = nothing.fileno(), output.fileno(), output.fileno()
            if on_terminal:
                self._terminal, line = pty.openpty()
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
                os.set_blocking(self._terminal, False)
                files = line, line, line
            self.process = start_python(("-m", "gpudiag", *words), environment, *files)
            if on_terminal:
                os.close(line)

    def printed(self) -> str:
        if self._terminal is not None:
            with contextlib.suppress(OSError), self._log.open("ab") as output:
                while data := os.read(self._terminal, 1 << 16):
                    output.write(data)
        return self._log.read_text(errors="replace")

    def wait_until(self, reached: Callable[["Running"], object]) -> None:
        until = time.monotonic() + TIME_LIMIT_SECONDS
        while not reached(self):
            assert self.process.poll() is None, self.printed()
            assert time.monotonic() < until, self.printed()
            time.sleep(0.02)

    def end(self, signals: tuple[signal.Signals | None, ...]) -> int:
        """Its exit status after those signals; None: the first goes on coming until it has ended."""
        until = time.monotonic() + TIME_LIMIT_SECONDS
        for number in filter(None, signals):
            self.process.send_signal(number)
        while self.process.poll() is None:
            assert time.monotonic() < until, self.printed()
            self.printed()
            time.sleep(0.01)
            if signals[-1] is None:
                self.process.send_signal(signals[0])
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIME_LIMIT_SECONDS)
        if self._terminal is not None:
            os.close(self._terminal)


def shows(words: str) -> Callable[[Running], object]:
    return lambda running: words in running.printed()


def has_children(count: int) -> Callable[[Running], object]:
    return lambda running: len(descendants(running.process.pid)) >= count


def answers(running: Running) -> bool:
    found = re.search(r"gpudiag serve: (http://\S+)", running.printed())
    if found is None:
        return False
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{found[1]}healthz", timeout=20):
        return True
    return False


@dataclass(frozen=True)
class Case:
    """A command that works until somebody ends it, and what shows that it works."""

    words: tuple[str, ...]
    works: Callable[[Running], object]
    machine: str = "none"
    stops: bool = False  # to be asked to end is its good end
    kills: bool = False  # Ctrl-C three times has it kill the program that it runs
    needs: str = "click"
    on_terminal: bool = False


HUNG = "h100x8+hang:6"
CASES = {
    "list": Case(("list", "--deadline", "60"), has_children(1), HUNG),
    "list --watch": Case(("list", "--watch", "1", "--json"), shows("gpudiag.snapshot"), "h100x8"),
    "watch": Case(("watch",), shows("quit"), "h100x8", needs="textual", on_terminal=True),
    "preflight": Case(("preflight", "--level", "instant", "--deadline", "60"), has_children(1), HUNG),
    "preflight on ranks": Case(("preflight", "--level", "quick"), has_children(4), needs="torch"),
    "nccl-test": Case(
        ("nccl-test", "--backend", "gloo", "--nproc", "2", "--max-bytes", "4K", "--iterations", "1000000"),
        has_children(3),
        needs="torch",
    ),
    "train": Case(
        ("train", "--backend", "gloo", "--nproc", "2", "--steps", "10000"), has_children(3), needs="torch"
    ),
    "bandwidth": Case(("bandwidth",), has_children(2), needs="torch"),
    "run": Case(("run", "--verdict", os.devnull, "--", *READY), shows("ready"), kills=True),
    "simulate": Case(("simulate", "h100x8", "--", *READY), shows("ready"), kills=True),
    "hang": Case(("hang", "--watch", "600", "PID"), has_children(1), needs="torch"),
    "serve": Case(("serve", "--port", "0", "--watch-jobs"), answers, "h100x8", stops=True, needs="fastapi"),
    "serve --hub": Case(
        ("serve", "--port", "0", "--hub", "127.0.0.1:1"), answers, stops=True, needs="fastapi"
    ),
    "demo": Case(("demo",), answers, stops=True, kills=True, needs="fastapi"),
    "demo --watch": Case(("demo", "--watch"), shows("quit"), kills=True, needs="textual", on_terminal=True),
}


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[Running]:
    case = CASES[name]
    pytest.importorskip(case.needs)
    folders = {"GPUDIAG_STATE_DIR": folder / "state", "TMPDIR": folder / "tmp", "HOME": folder / "home"}
    for path in folders.values():
        path.mkdir()
    with contextlib.ExitStack() as machines:
        session = machines.enter_context(simulated_machine(case.machine))
        environment = {**session.environment, **{key: str(path) for key, path in folders.items()}}
        environment |= {"XDG_CACHE_HOME": str(Path.home() / ".cache"), "TERM": "xterm-256color"}
        for word in ("COLUMNS", "LINES"):
            environment.pop(word, None)
        words = case.words
        if "PID" in words:
            job = machines.enter_context(
                subprocess.Popen(READY, env={**os.environ, **RANK}, stdout=subprocess.PIPE)
            )
            machines.callback(job.kill)
            assert job.stdout is not None
            job.stdout.readline()
            words = tuple(str(job.pid) if word == "PID" else word for word in words)
        command = Running(words, environment, folder / "printed", case.on_terminal)
        try:
            command.wait_until(case.works)
            yield command
        finally:
            command.close()


@pytest.mark.sliced
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize(
    "name", [pytest.param("serve", marks=pytest.mark.each_run), *sorted(CASES.keys() - {"serve"})]
)
def test_signals_end_a_command_at_work_in_order(name: str, ends: str, tmp_path: Path) -> None:
    case, signals = CASES[name], ENDS[ends]
    with running(name, tmp_path) as command:
        before, children = len(command.printed()), descendants(command.process.pid)
        status = command.end(signals)
        printed = command.printed()
    allowed = {0} if case.stops else {128 + number for number in signals if number}
    if len(signals) > 1 and case.kills:
        allowed |= {128 + number for number in (signal.SIGKILL, INT, TERM)}
    assert (status if status >= 0 else 128 - status) in allowed, printed
    assert "Traceback" not in printed
    assert len(re.findall(r"^gpudiag: (?:interrupted|terminated)$", printed[before:], re.MULTILINE)) <= 1, (
        printed
    )
    until = time.monotonic() + TIME_LIMIT_SECONDS
    while any(map(is_alive, children)) and time.monotonic() < until:  # the kernel takes a moment
        time.sleep(0.01)
    assert not [pid for pid in children if is_alive(pid)]
    assert not [*(tmp_path / "tmp").glob("*/*")]
