"""A process's own control groups in trees of both versions: frozen, held back, out of memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpudiag.linux import cgroup
from gpudiag.linux.cgroup import find_folders, read_mounts
from gpudiag.ranks.diagnosis import control_group
from gpudiag.ranks.diagnosis.control_group import GroupWatch, Quota

PID = 4242


class Machine:
    """A tree of control groups, and one process that is moved in it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, mounts: Mapping[str, str]) -> None:
        self.root = root
        self.groups = ""
        monkeypatch.setattr(
            cgroup,
            "read_mounts",
            lambda: {name: ("/", root / place) for name, place in mounts.items()},
        )
        read = control_group.read_file
        monkeypatch.setattr(
            control_group,
            "read_file",
            lambda path: self.groups if str(path) == f"/proc/{PID}/cgroup" else read(path),
        )

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@pytest.fixture
def v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    names = ("freezer", "cpu", "memory")
    machine = Machine(tmp_path, monkeypatch, {name: name for name in names})
    for name in names:
        (tmp_path / name / "job").mkdir(parents=True)
    machine.groups = "6:freezer:/job\n4:memory:/job\n1:cpu,cpuacct:/job\n"
    return machine


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, monkeypatch, {"": "unified"})
    (tmp_path / "unified" / "job" / "step").mkdir(parents=True)
    machine.groups = "0::/job/step\n"
    return machine


def looked(machine: Machine) -> GroupWatch:
    watch = GroupWatch()
    watch.look(PID)
    return watch


def test_a_frozen_group_is_named_in_both_versions(v1: Machine) -> None:
    watch = looked(v1)
    v1.write("freezer/job/freezer.state", "THAWED\n")
    assert watch.frozen_by() is None
    v1.write("freezer/job/freezer.state", "FROZEN\n")
    assert watch.frozen_by() == str(v1.root / "freezer" / "job")


def test_a_frozen_group_of_version_2_is_named(v2: Machine) -> None:
    watch = looked(v2)
    v2.write("unified/job/step/cgroup.events", "populated 1\nfrozen 0\n")
    assert watch.frozen_by() is None
    v2.write("unified/job/step/cgroup.events", "populated 1\nfrozen 1\n")
    assert watch.frozen_by() == str(v2.root / "unified" / "job" / "step")


def test_a_quota_counts_from_when_the_process_was_first_seen_under_it(v1: Machine) -> None:
    v1.write("cpu/job/cpu.stat", "nr_periods 100\nnr_throttled 90\nthrottled_time 9000000000\n")
    watch = looked(v1)
    assert watch.quota() is None
    v1.write("cpu/job/cpu.stat", "nr_periods 110\nnr_throttled 98\nthrottled_time 9700000000\n")
    assert watch.quota() == Quota(10, 8, pytest.approx(0.7), str(v1.root / "cpu" / "job"))


def test_a_quota_of_a_group_above_counts_too(v2: Machine) -> None:
    for group in ("unified/job", "unified/job/step"):
        v2.write(f"{group}/cpu.stat", "usage_usec 5\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    watch = looked(v2)
    v2.write("unified/job/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 9\nthrottled_usec 800000\n")
    assert watch.quota() == Quota(9, 9, pytest.approx(0.8), str(v2.root / "unified" / "job"))


def test_oom_kills_count_since_the_process_was_seen_in_the_group(v2: Machine) -> None:
    v2.write("unified/job/step/memory.events", "oom 3\noom_kill 3\noom_group_kill 0\n")
    v2.write("unified/job/step/memory.max", "209715200\n")
    watch = looked(v2)
    assert [(fact.name, fact.value) for fact in watch.memory_evidence()] == [("oom_kills", 0)]
    v2.write("unified/job/step/memory.events", "oom 4\noom_kill 4\noom_group_kill 0\n")
    facts = [(fact.name, fact.value) for fact in watch.memory_evidence()]
    assert facts == [("oom_kills", 1), ("memory_limit", 209715200)]


def test_a_kill_before_the_first_look_counts_since_the_parent_was_seen_in_the_same_group(v2: Machine) -> None:
    v2.write("unified/job/step/memory.events", "oom_kill 3\n")
    parent = looked(v2)
    v2.write("unified/job/step/memory.events", "oom_kill 4\n")
    child = GroupWatch(parent)
    child.look(PID)
    assert [(fact.name, fact.value) for fact in child.memory_evidence()] == [("oom_kills", 1)]


def test_what_a_group_counted_before_the_process_was_moved_there_is_not_its_own(v2: Machine) -> None:
    parent = looked(v2)
    v2.write("unified/other/memory.events", "oom_kill 7\n")
    v2.groups = "0::/other\n"
    child = GroupWatch(parent)
    child.look(PID)
    assert [(fact.name, fact.value) for fact in child.memory_evidence()] == [("oom_kills", 0)]


def test_a_limit_that_nobody_set_is_none(v1: Machine) -> None:
    v1.write("memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    v1.write("memory/job/memory.limit_in_bytes", "9223372036854771712\n")
    watch = looked(v1)
    v1.write("memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert [(fact.name, fact.value) for fact in watch.memory_evidence()] == [("oom_kills", 1)]


def test_a_process_that_is_moved_is_counted_in_its_new_group(v1: Machine) -> None:
    v1.write("memory/job/memory.oom_control", "oom_kill 0\n")
    v1.write("memory/small/memory.oom_control", "oom_kill 7\n")
    watch = looked(v1)
    v1.groups = "4:memory:/small\n"
    watch.look(PID)
    v1.write("memory/small/memory.oom_control", "oom_kill 8\n")
    assert [(fact.name, fact.value) for fact in watch.memory_evidence()] == [("oom_kills", 1)]


def test_a_group_that_only_the_host_sees_is_the_root_of_the_mount(v2: Machine) -> None:
    folders = find_folders("0::/host/path/of/the/container\n")
    assert folders == {"": v2.root / "unified"}


def test_a_machine_without_control_groups_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = looked(Machine(tmp_path, monkeypatch, {}))
    assert (watch.frozen_by(), watch.quota(), watch.memory_evidence()) == (None, None, ())


@pytest.fixture
def fresh_mounts() -> Iterator[None]:
    read_mounts.cache_clear()
    yield
    read_mounts.cache_clear()


def test_mounts_of_both_versions_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_mounts: None
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "29 23 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755\n"
        "30 29 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"
        "33 29 0:30 /docker/9f /sys/fs/cgroup/cpu,cpuacct rw master:1 - cgroup cgroup rw,cpu,cpuacct\n"
    )
    monkeypatch.setattr(cgroup, "_MOUNTS", table)
    mounts = read_mounts()
    assert mounts[""] == ("/", Path("/sys/fs/cgroup/unified"))
    assert mounts["cpu"] == ("/docker/9f", Path("/sys/fs/cgroup/cpu,cpuacct"))
