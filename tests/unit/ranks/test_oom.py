"""What the kernel log says of a process that was killed for lack of memory."""

from pathlib import Path

import pytest

from gpudiag.ranks.agents import local as oom
from gpudiag.ranks.agents.local import OomWatch, killed_pid, limited_group

LINE = "Memory cgroup out of memory: Killed process 4242 (python) total-vm:428192kB, anon-rss:139548kB"
CAUSE = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job_7,"
    "task_memcg=/job_7/step_0,task=python,pid=4242,uid=0"
)


def test_the_kernel_names_who_it_killed() -> None:
    assert killed_pid(LINE) == 4242
    assert killed_pid("Out of memory: Killed process 7 (python3) total-vm:1kB") == 7


def test_other_lines_name_nobody() -> None:
    assert killed_pid(CAUSE) is None


def test_the_kernel_names_the_group_whose_limit_was_reached() -> None:
    assert limited_group(CAUSE, 4242) == "/job_7"
    assert limited_group(CAUSE, 424) is None
    assert limited_group(LINE, 4242) is None


def test_the_log_counts_for_the_process_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "kmsg"
    monkeypatch.setattr(oom, "_KERNEL_LOG", str(log))
    log.write_text("")
    watch = OomWatch()
    log.write_text(f"6,991,2174307811,-;{LINE}\n")
    assert watch.read_evidence(1) == ()
    assert [(fact.name, fact.value) for fact in watch.read_evidence(4242)] == [("oom_killer", LINE)]
    watch.close()


def test_a_log_that_nobody_may_read_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom, "_KERNEL_LOG", str(tmp_path / "kmsg"))
    assert OomWatch().read_evidence(4242) == ()
