from pathlib import Path

import pytest

from gpudiag.ranks import oom
from gpudiag.ranks.oom import OomWatch, killed_pid

LINE = "Memory cgroup out of memory: Killed process 4242 (python) total-vm:428192kB, anon-rss:139548kB"


def test_the_kernel_names_who_it_killed() -> None:
    assert killed_pid(LINE) == 4242
    assert killed_pid("Out of memory: Killed process 7 (python3) total-vm:1kB") == 7


def test_other_lines_name_nobody() -> None:
    assert killed_pid("oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=19725,uid=0") is None


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cgroup's counter, and a kernel log that nobody may read."""
    path = tmp_path / "memory.events"
    path.write_text("low 0\noom 1\noom_kill 2\n")
    monkeypatch.setattr(oom, "find_counter", lambda _: path)
    monkeypatch.setattr(oom, "_KERNEL_LOG", str(tmp_path / "kmsg"))
    return path


def test_only_kills_since_the_start_count(counter: Path) -> None:
    watch = OomWatch()
    assert [(fact.name, fact.value) for fact in watch.read_evidence(4242)] == [("oom_kills", 0)]
    counter.write_text("low 0\noom 2\noom_kill 3\n")
    (fact,) = watch.read_evidence(4242)
    assert (fact.name, fact.value) == ("oom_kills", 1)


def test_the_log_counts_for_the_process_that_it_names(counter: Path, tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text("")
    watch = OomWatch()
    (tmp_path / "kmsg").write_text(f"6,991,2174307811,-;{LINE}\n")
    assert [fact.value for fact in watch.read_evidence(1)] == [0]
    assert [fact.value for fact in watch.read_evidence(4242)] == [LINE, 0]
    watch.close()


@pytest.mark.parametrize(
    ("cgroups", "path"),
    [
        ("0::/job\n", "unified/job/memory.events"),
        ("4:memory:/job\n0::/\n", "v1/job/memory.oom_control"),
        ("0::/host/path/of/the/container\n", "unified/memory.events"),
        ("1:cpu:/\n", None),
    ],
)
def test_the_counter_is_found_in_both_versions_and_in_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroups: str, path: str | None
) -> None:
    for name in ("unified/job/memory.events", "unified/memory.events", "v1/job/memory.oom_control"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("oom_kill 0\n")
    mounts = {
        "": (f"{tmp_path}/unified", "memory.events"),
        "memory": (f"{tmp_path}/v1", "memory.oom_control"),
    }
    monkeypatch.setattr(oom, "_COUNTER_FILES", mounts)
    assert oom.find_counter(cgroups) == (None if path is None else tmp_path / path)
