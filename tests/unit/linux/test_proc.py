"""The line of /proc/PID/stat, of real processes and of odd names."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from gpudiag.linux.proc import (
    children,
    descendants,
    find_process,
    is_alive,
    is_stopped,
    list_environments,
    list_pids,
    open_files,
    parse_stat,
    read_environment,
    read_schedule,
    read_stat,
    read_status,
    read_text,
    read_wait_channel,
    socket_inodes,
)

ODD = (
    "4242 (a) b (c)) S 1 4242 4242 0 -1 4194560 1 2 3 4 "
    + "150 50 30 20 20 0 1 0 7700"
    + " 0" * 16
    + " 3"
    + " 0" * 12
    + " 9\n"
)


def test_a_command_may_hold_brackets_and_blanks():
    stat = parse_stat(ODD)
    assert (stat.pid, stat.name, stat.state, stat.parent_pid, stat.start_ticks) == (
        4242,
        "a) b (c)",
        "S",
        1,
        7700,
    )
    ticks = os.sysconf("SC_CLK_TCK")
    assert stat.cpu_seconds == pytest.approx(200 / ticks)
    assert stat.children_cpu_seconds == pytest.approx(50 / ticks)
    assert (stat.processor, stat.exit_code) == (3, 9)


def test_it_is_what_the_system_calls_say_of_this_process():
    stat = read_stat(os.getpid())
    assert stat.parent_pid == os.getppid()
    assert stat.name == read_text("/proc/self/comm").strip()
    used = os.times()
    assert 0 < stat.cpu_seconds <= used.user + used.system + 0.02
    uptime_seconds = float(read_text("/proc/uptime").split()[0])
    assert 0 < stat.started_seconds < uptime_seconds
    assert read_stat(f"{os.getpid()}/task/{os.getpid()}").name == stat.name


def test_children_and_theirs_are_found_and_a_stopped_one_is_seen():
    program = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    started = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    try:
        until = time.monotonic() + 60
        while len([*descendants(started.pid)]) < 1 and time.monotonic() < until:
            time.sleep(0.05)
        (sleeping,) = descendants(started.pid)
        assert started.pid in children(os.getpid())
        assert {started.pid, sleeping} <= set(descendants(os.getpid()))
        assert children(started.pid, of_main_thread=True) == [sleeping]
        assert not is_stopped(sleeping)
        os.kill(sleeping, signal.SIGSTOP)
        while not is_stopped(sleeping) and time.monotonic() < until:
            time.sleep(0.05)
        assert is_stopped(sleeping)
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_of_a_process_that_is_gone_there_is_nothing():
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert children(ended.pid) == []
    assert not is_stopped(ended.pid)
    with pytest.raises(OSError, match=str(ended.pid)):
        read_stat(ended.pid)


def test_what_is_read_of_this_process_is_what_the_system_calls_say(tmp_path):
    me = os.getpid()
    assert me in list_pids()
    assert is_alive(me)
    assert read_status("self")["Uid"].split()[0] == str(os.getuid())
    ran, waited, times = read_schedule(me)
    assert 0 < ran <= time.clock_gettime(time.CLOCK_MONOTONIC)
    assert waited >= 0
    assert times > 0
    with (tmp_path / "open").open("w") as file, socket.socket() as sock:
        found = open_files(me)
        assert found[file.fileno()] == str(tmp_path / "open")
        assert os.fstat(sock.fileno()).st_ino in socket_inodes(me)


def test_the_environment_is_that_of_the_start():
    variables = {"GPUDIAG_TEST_ODD": "a=b\nc", "PATH": os.environ["PATH"]}
    started = subprocess.Popen(["sleep", "60"], env=variables)
    try:
        until = time.monotonic() + 60
        while read_environment(started.pid) != variables:  # the fork has not become it yet
            assert time.monotonic() < until
            time.sleep(0.01)
        assert [pid for pid, text in list_environments() if b"GPUDIAG_TEST_ODD=a=b\nc\0" in text] == [
            started.pid
        ]
        assert isinstance(read_wait_channel(started.pid), str)
    finally:
        started.kill()
        started.wait()
    assert find_process(started.pid) is None
    assert not is_alive(started.pid)
    assert open_files(started.pid) == {}
    assert read_wait_channel(started.pid) == ""
    with pytest.raises(OSError, match="No such"):
        read_environment(started.pid)
