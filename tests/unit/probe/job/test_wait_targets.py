"""Who is at the other end of what a process waits for: of real pipes and connections, held by a program
beside it.
"""

import ctypes
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpudiag.probe.job.kernel import look_at_process
from gpudiag.probe.job.wait_targets import Call, describe_descriptor, read_wake_up


@contextmanager
def held_by_another(descriptor: int) -> Iterator[int]:
    """The pid of a program that has the descriptor, which is closed here."""
    with subprocess.Popen(["sleep", "600"], pass_fds=[descriptor]) as program:
        os.close(descriptor)
        try:
            yield program.pid
        finally:
            program.kill()


def other_end(descriptor: int) -> str:
    """What is reported of the other end of a descriptor of this process."""
    return describe_descriptor(os.getpid(), descriptor).detail


def test_the_other_end_of_a_pipe_is_who_may_do_the_opposite() -> None:
    for kept, given in ((0, 1), (1, 0)):
        ends = os.pipe()
        same = os.dup(ends[kept])
        with held_by_another(same), held_by_another(ends[given]) as pid:
            assert other_end(ends[kept]) == f"the other end is pid {pid} (sleep 600)"
        os.close(ends[kept])


def test_a_pipe_whose_other_end_only_the_process_itself_has_is_told() -> None:
    """A program whose output nobody else can write waits for ever for what it must write itself."""
    ends = os.pipe()
    assert other_end(ends[0]) == "only this process has the other end"
    for end in ends:
        os.close(end)


def test_a_connection_is_named_with_the_process_at_its_other_end() -> None:
    for address in ("127.0.0.1", "::ffff:127.0.0.1"):  # a program of IPv6 that talks to one of IPv4
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family) as client:
            client.connect((address, server.getsockname()[1]))
            accepted, _ = server.accept()
            with held_by_another(accepted.detach()) as pid:
                assert other_end(client.fileno()) == f"the other end is pid {pid} (sleep 600)"


def test_a_connection_within_one_process_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            assert other_end(client.fileno()) == "only this process has the other end"


def test_a_connection_that_nobody_has_accepted_is_named_with_who_listens() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname()) as client, held_by_another(server.detach()) as pid:
        assert other_end(client.fileno()) == f"the other end is pid {pid} (sleep 600)"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="time.sleep() gives the kernel a length there")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_question_by_udp_is_named_with_whom_it_asks(host: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((host, 53))
        seen = describe_descriptor(os.getpid(), asking.fileno())
    assert seen.name.rpartition(":")[2] == "53"
    assert host in seen.name
    assert seen.detail == "a name server, by UDP"


def test_until_when_a_program_sleeps_is_read_of_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as program:
        seen = None
        while seen is None or seen.syscall != "clock_nanosleep":
            look = look_at_process(program.pid, 0.0)
            seen = look.main if look is not None else None
            time.sleep(0.01)
        program.kill()
    assert seen.wakes_in_seconds is not None
    assert 0 < seen.wakes_in_seconds <= 600


@pytest.mark.parametrize(("ahead_seconds", "is_known"), [(40, True), (-40, False)])
def test_a_sleep_by_another_clock_has_no_known_end(ahead_seconds: int, is_known: bool) -> None:
    """One whose time is past, and which sleeps, has the clock of another time namespace."""
    until = ctypes.create_string_buffer(struct.pack("qq", int(time.monotonic()) + ahead_seconds, 0))
    arguments = (time.CLOCK_MONOTONIC, 1, ctypes.addressof(until), 0, 0, 0)
    left = read_wake_up(Call(os.getpid(), os.getpid(), "clock_nanosleep", arguments))
    assert (left is not None) == is_known
