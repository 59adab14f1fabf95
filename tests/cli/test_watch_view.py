"""`gpudiag watch` as a command on a pseudo-terminal: it draws, obeys keys and signals, and leaves terminal
and machine as they were.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli.simulated import TIME_LIMIT_SECONDS, processes_of, run_in, run_on, simulated_machine

pyte = pytest.importorskip("pyte", reason="the tests of the view need pyte")
pytest.importorskip("textual", reason="the extra [watch] is not installed")

STORY = """
base = "h100x8"
faults = ["busy:0", "busy:1", "busy:2", "busy:3"]
[[story]]
title = "well"
seconds = 1
[[story]]
title = "a rank hangs"
seconds = 1
faults = ["job-hangs"]
"""
# What Textual asks and switches on at the start, and must have switched off again at the end (xterm,
# ctlseqs.html).
ALTERNATE_SCREEN, MOUSE = ("?1049h", "?1049l"), ("?1000h", "?1000l")
# xdist sets them for its workers; a program believes them more than its terminal.
_SIZE = (
    "COLUMNS",
    "LINES",
)
_COLOUR = re.compile(rb"\x1b\[[0-9;]*?(?:3[0-7]|4[0-7]|38;|48;|9[0-7])[0-9;]*m")


class Terminal:
    """A pseudo-terminal with the command in it, and what a terminal would show."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *argv: str,
        columns: int = 100,
        lines: int = 30,
        command: str = "watch",
    ) -> None:
        self.master, line = pty.openpty()
        self.set_size(columns, lines)
        self.modes = termios.tcgetattr(line)
        self.line = line
        self.raw = b""
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpudiag", command, *argv],
            env={
                "TERM": "xterm-256color",
                **{name: environment[name] for name in environment if name not in _SIZE},
            },
            stdin=line,
            stdout=line,
            stderr=line,
            start_new_session=True,
        )

    def set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        """Change the size, and wait until the program has drawn: its last line is the terminal's."""
        self.read()
        self.screen.reset()
        self.screen.resize(lines, columns)
        self.set_size(columns, lines)
        until = time.monotonic() + TIME_LIMIT_SECONDS
        while "q quit" not in self.screen.display[-1] and time.monotonic() < until:
            self.process.send_signal(signal.SIGWINCH)  # it is no program of this terminal's session
            for _ in range(20):
                self.read()

    def read(self) -> None:
        """Take what has come."""
        while select.select([self.master], [], [], 0.02)[0]:
            with contextlib.suppress(OSError):
                data = os.read(self.master, 1 << 16)
                self.raw += data
                with contextlib.suppress(Exception):  # pyte does not know each sequence
                    self._stream.feed(data)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, is_there: Callable[[str], object]) -> str:
        """What is shown once it is so."""
        until = time.monotonic() + TIME_LIMIT_SECONDS
        while time.monotonic() < until:
            self.read()
            if is_there(self.text):
                return self.text
            assert self.process.poll() is None, self.text
        raise AssertionError(self.text)

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait(self) -> int:
        """The exit status, once it has ended; what it has written last is taken."""
        until = time.monotonic() + TIME_LIMIT_SECONDS
        while self.process.poll() is None and time.monotonic() < until:
            self.read()
        self.read()
        status = self.process.wait(1)
        left = processes_of(self.process.pid)
        until = time.monotonic() + TIME_LIMIT_SECONDS
        while left and time.monotonic() < until:  # the kernel takes a moment to end what died with it
            time.sleep(0.01)
            left = processes_of(self.process.pid)
        assert left == ()
        assert termios.tcgetattr(self.line) == self.modes
        for on, off in (ALTERNATE_SCREEN, MOUSE):
            assert self.raw.rfind(off.encode()) > self.raw.rfind(on.encode()) > 0
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIME_LIMIT_SECONDS)
        os.close(self.line)
        os.close(self.master)


@contextlib.contextmanager
def watching(
    spec: str, *argv: str, columns: int = 100, lines: int = 30, **environment: str
) -> Iterator[Terminal]:
    with simulated_machine(spec) as session:
        base = {
            name: value
            for name, value in session.environment.items()
            if name not in ("NO_COLOR", "FORCE_COLOR")
        }
        terminal = Terminal({**base, **environment}, *argv, columns=columns, lines=lines)
        try:
            yield terminal
        finally:
            terminal.close()


def has_gpus(text: str) -> bool:
    return "UTIL" in text and "80GB" in text


def test_it_shows_the_machine_obeys_keys_and_quits():
    with watching("h100x8+busy:0+hot:5") as terminal:
        text = terminal.wait_for(lambda text: "temperature.gpu_too_hot" in text)
        assert "FAULTY" in text
        assert "SIMULATED h100x8" in text
        terminal.wait_for(lambda text: "train.py" in text)
        terminal.press("t")  # a list: without the launcher
        terminal.wait_for(lambda text: "torchrun" not in text and "python train.py" in text)
        terminal.press("?")
        terminal.wait_for(lambda text: "gpudiag hang PID" in text)
        terminal.press("\x1b")
        terminal.wait_for(has_gpus)
        terminal.resize(80, 20)
        terminal.wait_for(has_gpus)
        terminal.press("e")  # the cursor is on GPU 0, which has no finding
        terminal.wait_for(lambda text: "no finding is under the cursor" in text)
        terminal.press("\x1b")
        terminal.wait_for(has_gpus)
        terminal.press("\te")
        terminal.wait_for(
            lambda text: "gpudiag explain temperature.gpu_too_hot" in text and "exit status 0" in text
        )
        terminal.press("\x1b")
        terminal.wait_for(has_gpus)
        terminal.press("q")
        assert terminal.wait() == 0
        assert _COLOUR.search(terminal.raw)


@pytest.mark.parametrize("how", ["ctrl-c", "SIGINT", "SIGTERM"])
def test_an_interrupt_leaves_the_terminal_as_it_was_and_no_child(how: str):
    with watching("h100x8") as terminal:
        terminal.wait_for(has_gpus)
        if how == "ctrl-c":
            terminal.press("\x03")
        else:
            terminal.process.send_signal(getattr(signal, how))
        assert terminal.wait() == (143 if how == "SIGTERM" else 130)
        assert b"Traceback" not in terminal.raw


def test_the_demo_is_shown_with_a_job_that_hangs_and_ends_with_ctrl_c(tmp_path: Path):
    story = tmp_path / "story.toml"
    story.write_text(STORY)
    with simulated_machine("none") as outside:  # there is a compiler
        terminal = Terminal(outside.environment, str(story), "--watch", command="demo", columns=140)
    try:
        terminal.wait_for(lambda text: "SIMULATED" in text)
        text = terminal.wait_for(lambda text: "hang.loader" in text and "train.py" in text)
        assert "rank 2" in text
        terminal.press("\x03")
        assert terminal.wait() == 130
        assert b"Traceback" not in terminal.raw
    finally:
        terminal.close()


def test_a_gpu_that_hangs_freezes_nothing():
    with watching("h100x8+hang:6") as terminal:
        terminal.wait_for(lambda text: "HUNG" in text and "has not come back" in text)
        terminal.press("c")
        terminal.wait_for(lambda text: "SM" in text)
        terminal.press("q")
        assert terminal.wait() == 0


def test_without_colour_and_without_utf8_it_is_still_drawn():
    with watching("h100x8+busy:0+hot:5", NO_COLOR="1", LC_ALL="C") as terminal:
        terminal.wait_for(lambda text: "FAULTY" in text and ("|- " in text or "`- " in text))
        terminal.press("q")
        assert terminal.wait() == 0
        assert _COLOUR.search(terminal.raw) is None
        assert terminal.raw.isascii()


def test_a_machine_without_gpus_says_why():
    with watching("none") as terminal:
        terminal.wait_for(lambda text: "no NVIDIA driver" in text)
        terminal.press("q")
        assert terminal.wait() == 0


def test_what_was_recorded_is_shown_again(tmp_path: Path):
    file = tmp_path / "a.jsonl.gz"
    with watching("h100x8+busy:0+hot:5", "--record", str(file), "--interval", "1") as terminal:
        terminal.wait_for(lambda text: "recording " in text and "temperature.gpu_too_hot" in text)
        terminal.press("q")
        assert terminal.wait() == 0
    with watching("none", "--replay", str(file)) as terminal:
        terminal.wait_for(lambda text: "REPLAY" in text and "80GB" in text)
        terminal.press("\x1b[C\x1b[C\x1b[C\x1b[C")
        terminal.wait_for(lambda text: "FAULTY" in text)
        terminal.press("q")
        assert terminal.wait() == 0


def test_what_it_cannot_do_is_one_sentence(tmp_path: Path):
    with simulated_machine("h100x8") as session:
        no_terminal = run_on(session, "watch")
        assert no_terminal.status == 2
        assert "needs a terminal" in no_terminal.err
        assert "gpudiag list --watch 1" in no_terminal.err
        for argv, words in {
            ("--replay", str(tmp_path / "absent")): "needs a terminal",
            ("--replay", "a", "--record", "b"): "do not go together",
            ("--token-file", "a"): "--token-file is for",
            ("--interval", "0.1"): "1 to 60",
        }.items():
            done = run_on(session, "watch", *argv)
            assert (done.status, done.out) == (2, ""), argv
            assert words in " ".join(done.err.split()), argv


def test_the_light_install_names_the_extra(tmp_path: Path):
    """An interpreter that has gpudiag's own packages, and not textual."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfrom importlib.machinery import PathFinder\nfind = PathFinder.find_spec\n"
        "PathFinder.find_spec = classmethod(lambda cls, name, *a, **k: None if name == 'textual' else find(name, *a, **k))\n"
    )
    done = run_in({**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}, "watch")
    assert done.status == 2
    assert "textual is not installed" in done.err
    assert "[watch]" in done.err
    assert "gpudiag list --watch 1" in done.err
