"""Our children: signalled, killed with what they started, reaped without waiting; read by an event loop."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from time import monotonic, sleep

import pytest

from gpudiag.linux.child import Child, KilledChildren, Program, peek_exit, with_import_path
from gpudiag.linux.loop_child import ChildProcess, LoopReader
from gpudiag.linux.proc import is_alive

LIMIT_SECONDS = 60.0  # for what takes milliseconds where nothing is wrong


def wait_for(condition: Callable[[], bool]) -> None:
    until = monotonic() + LIMIT_SECONDS
    while not condition():
        assert monotonic() < until
        sleep(0.01)


def start_shell(words: str, **files: int) -> Program:
    return Program(["/bin/sh", "-c", words], os.environ, **files)


@pytest.mark.parametrize(("words", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9)])
def test_how_a_child_ended_is_known_and_stays_known(words: str, status: int) -> None:
    program = start_shell(words)
    assert program.wait(LIMIT_SECONDS) == status
    assert (program.exit_status(), program.is_reaped()) == (status, True)


def test_a_look_at_the_end_leaves_the_child_to_be_reaped() -> None:
    program = start_shell("exit 3")
    wait_for(lambda: peek_exit(program.pid) is not None)
    assert peek_exit(program.pid) == 3
    assert program.exit_status() == 3
    with pytest.raises(ChildProcessError):
        peek_exit(program.pid)


def test_a_child_that_another_has_reaped_has_ended_and_nobody_knows_how() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(5)
    child = Child(pid)
    os.waitpid(pid, 0)
    assert (child.is_reaped(), child.exit_status()) == (True, None)


def test_what_a_child_started_is_killed_with_it_also_after_its_end() -> None:
    program = start_shell("sleep 600 & echo $!; exit 0", stdout=subprocess.PIPE)
    left = int(os.read(program.output, 64))
    program.close_pipes()
    assert program.wait(LIMIT_SECONDS) == 0
    assert is_alive(left)
    program.kill()
    wait_for(lambda: not is_alive(left))


def test_a_child_that_has_ended_gets_no_signal() -> None:
    program = start_shell("exit 0")
    program.wait(LIMIT_SECONDS)
    program.signal(signal.SIGTERM)
    assert program.exit_status() == 0


class Stuck:
    """A killed child in uninterruptible sleep, until the test lets it end."""

    ends = False

    def is_reaped(self) -> bool:
        return self.ends


def test_killed_children_are_counted_until_they_have_ended() -> None:
    killed, stuck, program = KilledChildren(), Stuck(), start_shell("sleep 600")
    killed.add(stuck)
    program.kill()
    killed.add(program)
    wait_for(lambda: killed.count() == 1)
    stuck.ends = True
    assert killed.count() == 0


def test_a_child_has_no_descriptor_but_those_that_it_is_given() -> None:
    ours, given = os.pipe()
    secret = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        words = f"test -e /proc/self/fd/{given} && ! test -e /proc/self/fd/{secret}"
        assert Program(["/bin/sh", "-c", words], os.environ, keep=(given,)).wait(LIMIT_SECONDS) == 0
    finally:
        for descriptor in (ours, given, secret):
            os.close(descriptor)


def test_a_program_that_does_not_exist_leaves_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No such file"):
        Program(["/nonexistent/program"], os.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert os.listdir("/proc/self/fd") == before


def test_a_python_that_is_started_imports_what_this_one_does() -> None:
    words = "import sys; sys.exit(not set(sys.argv[1:]) <= set(sys.path))"
    paths = [path for path in sys.path if os.path.isdir(path)]
    argv = [sys.executable, "-c", words, *paths]
    assert Program(argv, with_import_path({"PATH": os.environ["PATH"]})).wait(LIMIT_SECONDS) == 0


def test_the_loop_takes_what_came_last_and_then_reads_no_more() -> None:
    async def read() -> list[bytes]:
        taken: list[bytes] = []
        program = start_shell("printf one; exit 0", stdout=subprocess.PIPE)
        reader = LoopReader(program.output, taken.append)
        assert program.wait(LIMIT_SECONDS) == 0
        reader.read_rest()
        program.close_pipes()
        await asyncio.sleep(0)
        assert not reader.is_open
        return taken

    assert asyncio.run(read()) == [b"one", b""]


def test_lines_of_a_child_arrive_as_objects_and_its_end_is_noticed() -> None:
    async def hear() -> tuple[list[dict[str, object]], str]:
        heard: list[dict[str, object]] = []
        child = ChildProcess(
            "tests.unit.linux.speaking_child", ("2",), lambda _child, line: heard.append(line)
        )
        until = monotonic() + LIMIT_SECONDS
        while not child.ended and monotonic() < until:
            await asyncio.sleep(0.01)
        child.send({"to": "nobody"})
        wait_for(child.is_reaped)
        return heard, child.how_it_ended()

    heard, how = asyncio.run(hear())
    assert heard == [{"number": 0}, {"number": 1}]
    assert how == "exit status 4"
