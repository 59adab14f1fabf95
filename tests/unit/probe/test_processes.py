import os
import subprocess
import sys

import pytest

from gpudiag.probe.host.processes import parse_container_id, read_process, user_name
from gpudiag.probe.sheet import Absent

ID = "4f5c9e1b" * 8
STAT = "4242 (python (3.11) x) S 1 4242 4242 0 -1 4194560 1 0 0 0 10 5 0 0 20 0 1 0 360000 1000 1"


@pytest.fixture
def root(tmp_path):
    process = tmp_path / "proc/4242"
    process.mkdir(parents=True)
    (process / "cmdline").write_text("python\0train.py\0--lr\0" + "1e-3\0")
    (process / "comm").write_text("python\n")
    (process / "status").write_text("Name:\tpython\nUid:\t1001\t1001\t1001\t1001\n")
    (process / "cgroup").write_text(f"0::/system.slice/docker-{ID}.scope\n")
    (process / "stat").write_text(STAT)
    (tmp_path / "proc/stat").write_text("cpu  1 2\nbtime 1795000000\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nann:x:1001:1001::/home/ann:/bin/sh\n")
    return tmp_path


def test_a_process_has_its_user_command_container_and_start(root):
    process = read_process(4242, str(root))
    assert process["visible"] is True
    assert (process["user"], process["command"]) == ("ann", "python train.py --lr 1e-3")
    assert (process["container_id"], process["state"]) == (ID, "S")
    assert process["started_at"] == 1795000000 + 360000 / os.sysconf("SC_CLK_TCK")
    assert process["missing"] == {}


def test_a_process_of_another_name_space_is_not_visible(root):
    process = read_process(99, str(root))
    assert process["visible"] is False
    assert process["missing"]["command"] == "source_absent"


def test_a_zombie_has_its_name_in_brackets(root):
    (root / "proc/4242/cmdline").write_text("")
    assert read_process(4242, str(root))["command"] == "[python]"


def test_a_user_without_a_name_is_a_number(root):
    assert user_name(4711, str(root)) == "4711"


def test_what_proc_does_not_show_costs_only_itself(root):
    (root / "proc/4242/cgroup").unlink()
    process = read_process(4242, str(root))
    assert process["missing"] == {"container_id": "source_absent"}
    assert process["user"] == "ann"


def test_a_cgroup_of_the_host_names_no_container():
    with pytest.raises(Absent):
        parse_container_id("0::/user.slice/user-1001.slice/session-3.scope\n")


def test_a_live_process_is_read_on_this_machine():
    code = "print('here', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as running:
        running.stdout.readline()
        process = read_process(running.pid)
        running.communicate(b"\n")
    assert process["visible"] is True
    assert process["command"].startswith(sys.executable)
    assert abs(process["started_at"] - os.stat("/proc/self").st_mtime) < 3600
