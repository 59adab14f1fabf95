import os
import subprocess
import sys

import pytest

from gpudiag.probe.host.processes import parse_container_id, parse_slurm_job, read_process, user_name
from gpudiag.probe.sheet import Absent
from tests.walking import walk

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
    (process / "environ").write_text("HOME=/home/ann\0SLURM_JOB_IDS=1\0SLURM_JOB_ID=7\0")
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
    assert process["slurm_job_id"] == 7
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


# What /proc/PID/cgroup says: of Slurm 22.05 and later with cgroup v2, also of several slurmd on a machine and
# as seen from a container; of cgroup v1; of everything that looks like it and is not.
SLURM_CGROUPS = (
    ("0::/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0\n", 1392969),
    ("0::/system.slice/slurmstepd.scope/job_42/step_extern/user\n", 42),
    ("0::/system.slice/n1_slurmstepd.scope/job_4/step_batch/user/task_special\n", 4),
    ("0::/../../slurmstepd.scope/job_5/step_0/user/task_3\n", 5),
    (
        "11:devices:/slurm/uid_1001/job_123/step_0/task_0\n10:cpuset:/slurm/uid_1001/job_123/step_0\n"
        "1:name=systemd:/\n",
        123,
    ),
    ("4:memory:/slurm_node7/uid_1/job_8/step_batch\n", 8),
    ("4:memory:/slurm/uid_1/job_77", 77),
    ("0::/system.slice/slurmstepd.scope/system\n", None),
    ("0::/system.slice/slurmd.service\n", None),
    ("0::/system.slice/slurmstepd.scope/job_bad/step_0\n", None),
    ("0::/user.slice/user-1000.slice/job_5/x\n", None),
    ("0::/pbs_jobs.service/jobid/12345.server\n", None),
    ("12:pids:/lsf/cluster/job.77.12.1\n", None),
    ("0::/\n", None),
)


@walk(SLURM_CGROUPS)
def test_a_cgroup_names_the_slurm_job(case):
    text, job = case
    assert parse_slurm_job(text) == job


def test_the_cgroup_is_believed_before_the_environment_which_anyone_can_set(root):
    (root / "proc/4242/cgroup").write_text("0::/system.slice/slurmstepd.scope/job_31/step_0/user/task_0\n")
    assert read_process(4242, str(root))["slurm_job_id"] == 31
    (root / "proc/4242/cgroup").unlink()
    assert read_process(4242, str(root))["slurm_job_id"] == 7
    for words in ("SLURM_JOB_ID=\0", "SLURM_JOB_ID=x7\0", "NOT_SLURM_JOB_ID=7\0", ""):
        (root / "proc/4242/environ").write_text(words)
        assert read_process(4242, str(root))["missing"]["slurm_job_id"] == "source_absent", words


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
