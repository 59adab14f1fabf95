"""What of gpudiag works: each part by what was seen of it, and the commands by their parts."""

from dataclasses import replace
from typing import Any

from gpudiag.checks.doctor.inputs import Sight
from gpudiag.checks.doctor.report import FRAMEWORKS, NEEDS, judge_doctor
from gpudiag.cli.commands import COMMANDS
from gpudiag.model.device import SourceState, SourceStatus
from gpudiag.model.doctor import (
    DoctorReport,
    PartState,
    StateFolder,
    Surroundings,
    TorchBuild,
    TraceRights,
)
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.surroundings import JOB_PACKAGES, PACKAGES
from gpudiag.render.doctor_text import render_doctor
from gpudiag.render.style import Style
from gpudiag.units import GIB, MIB
from tests.unit.checks.machines import CONTAINER, make_bare_machine
from tests.unit.model.nouns import make_device, make_snapshot
from tests.walking import walk

ABSENT = Missing(MissingReason.SOURCE_ABSENT)
LATE = Missing(MissingReason.TIMED_OUT, "no answer within 5.0 s")
CUDA_BUILD = TorchBuild("2.13.0", "13.0", "2.28.9")
CPU_BUILD = TorchBuild("2.13.0+cpu", Missing(MissingReason.NOT_SUPPORTED), ABSENT)
EVERYTHING = Surroundings(
    programs={
        name: f"/usr/bin/{name}" for name in ("nvidia-smi", "py-spy", "pystack", "cc", "srun", "torchrun")
    },
    packages=dict.fromkeys(PACKAGES, "1.0"),
    job_packages=dict.fromkeys(JOB_PACKAGES, "1.0"),
    torch=CUDA_BUILD,
    trace_rights=TraceRights(is_root=True, ptrace_scope=1, has_capability=True),
    state_folder=StateFolder("/var/lib/gpudiag", "", 10 * GIB),
    ports={"4783": True, "29500": True},
    closed_nodes=(),
    kubelet=True,
    page=True,
)
READ_LOG = SourceStatus("kernel_log", SourceState.OK, "read from /dev/kmsg")
NVML = SourceStatus("nvml", SourceState.OK, None, 0.01, 1)
NO_NVML = SourceStatus("nvml", SourceState.LIBRARY_ABSENT, "libnvidia-ml.so.1 is not found")
WORKSTATION = make_snapshot(
    make_device(0),
    machine=make_bare_machine(1, shared_memory_total_bytes=16 * GIB),
    kernel_log=(),
    sources=(NVML, READ_LOG),
)
WITHOUT_GPU = replace(
    WORKSTATION,
    devices=(),
    machine=make_bare_machine(0, shared_memory_total_bytes=16 * GIB),
    sources=(NO_NVML, READ_LOG),
)


def examine(snapshot: Any = WORKSTATION, runs: Any = 3, **seen: Any) -> DoctorReport:
    sight = Sight(
        snapshot, replace(EVERYTHING, **seen), runs, lambda extra: f"pip install 'gpudiag[{extra}]'", "python"
    )
    return judge_doctor(sight, "1.0", 0.1)


def without(*names: str) -> dict[str, str]:
    return {name: "1.0" for name in (*PACKAGES, *JOB_PACKAGES) if name not in names}


def state_of(report: DoctorReport, name: str) -> PartState:
    return next(part.state for part in report.parts if part.name == name)


def test_where_everything_is_there_all_works() -> None:
    report = examine()
    assert [
        part for part in report.parts if part.state is not PartState.WORKS and part.name != "cgroup"
    ] == []
    assert report.outcome is Outcome.PASS or state_of(report, "cgroup") is not PartState.WORKS
    assert {one.state for one in report.commands} == {PartState.WORKS}


def test_every_command_has_its_needs_and_every_need_is_a_part() -> None:
    assert set(NEEDS) == set(COMMANDS) - {"doctor"}
    named = {part.name for part in examine().parts}
    assert {name for needs in NEEDS.values() for group in needs for name in group} <= named


SMALL = replace(WORKSTATION.machine, shared_memory_total_bytes=64 * MIB)
CASES: tuple[tuple[str, PartState, dict[str, Any], str], ...] = (
    ("nvml", PartState.BROKEN, {"snapshot": replace(WORKSTATION, devices=(), sources=(NO_NVML, READ_LOG))},
        "list"),
    ("nvml", PartState.NOT_HERE, {"snapshot": WITHOUT_GPU}, "list"),
    ("device-files", PartState.BROKEN, {"closed_nodes": ("/dev/nvidia0",)}, "preflight"),
    ("device-files", PartState.NOT_HERE, {"snapshot": WITHOUT_GPU}, ""),
    ("nvidia-smi", PartState.ABSENT, {"programs": {}}, ""),
    ("nvidia-smi", PartState.NOT_HERE, {"snapshot": WITHOUT_GPU, "programs": {}}, ""),
    ("kernel-log", PartState.LIMITED, {"snapshot": replace(WORKSTATION,
        kernel_log=Missing(MissingReason.NO_PERMISSION))}, "preflight"),
    ("torch", PartState.ABSENT, {"torch": ABSENT}, "nccl-test"),
    ("torch", PartState.BROKEN, {"torch": CPU_BUILD}, "train"),
    ("torch", PartState.BROKEN, {"torch": LATE}, "bandwidth"),
    ("torch", PartState.WORKS, {"torch": CPU_BUILD, "snapshot": WITHOUT_GPU}, ""),
    ("torch", PartState.WORKS, {"torch": CPU_BUILD, "snapshot": replace(WORKSTATION, simulated="h100x8")},
        ""),
    ("nccl", PartState.NOT_HERE, {"torch": CPU_BUILD}, ""),
    ("shared-memory", PartState.LIMITED, {"snapshot": replace(WORKSTATION, machine=SMALL)}, "nccl-test"),
    ("ports", PartState.LIMITED, {"ports": {"4783": False, "29500": True}}, "serve"),
    ("ports", PartState.BROKEN, {"ports": LATE}, "serve"),
    ("launchers", PartState.NOT_HERE, {"programs": {}}, ""),
    ("slurm", PartState.NOT_HERE, {"programs": {}}, ""),
    ("kubelet", PartState.NOT_HERE, {"kubelet": ABSENT}, ""),
    ("kubelet", PartState.LIMITED, {"kubelet": False}, ""),
    ("kubelet", PartState.LIMITED, {"kubelet": Missing(MissingReason.NO_PERMISSION)}, ""),
    ("python-stacks", PartState.ABSENT, {"programs": {}}, "hang"),
    ("c-stacks", PartState.ABSENT, {"programs": {"py-spy": "/usr/bin/py-spy"}}, "hang"),
    ("tracing", PartState.LIMITED, {"trace_rights": TraceRights(False, 1, False)}, "hang"),
    ("tracing", PartState.LIMITED, {"trace_rights": TraceRights(False, 2, False)}, "run"),
    ("tracing", PartState.LIMITED, {"trace_rights": TraceRights(True, 3, True)}, "run"),
    ("tracing", PartState.LIMITED, {"trace_rights": TraceRights(True, 0, False)}, "run"),
    ("tracing", PartState.WORKS, {"trace_rights": TraceRights(False, 0, False)}, ""),
    ("tracing", PartState.WORKS, {"trace_rights": TraceRights(False, ABSENT, False)}, ""),
    ("state-folder", PartState.BROKEN, {"state_folder": StateFolder("/x", "Read-only file system", 0)},
        "history"),
    ("state-folder", PartState.LIMITED, {"state_folder": StateFolder("/x", "", 4096)}, "history"),
    ("state-folder", PartState.BROKEN, {"state_folder": LATE}, "history"),
    ("history", PartState.BROKEN, {"runs": Missing(MissingReason.ERROR, "database disk image is malformed")},
        "history"),
    ("postgres", PartState.ABSENT, {"packages": without("psycopg")}, ""),
    ("service", PartState.ABSENT, {"packages": without("uvicorn")}, "serve"),
    ("service", PartState.BROKEN, {"packages": LATE}, "serve"),
    ("web-page", PartState.ABSENT, {"page": False}, "serve"),
    ("compiler", PartState.ABSENT, {"programs": {}, "packages": without("ziglang")}, "simulate"),
    ("compiler", PartState.WORKS, {"programs": {}}, ""),
    *((name, PartState.ABSENT, {"job_packages": {}}, "") for name in FRAMEWORKS),
)  # fmt: skip


@walk(CASES, lambda case: f"{case[0]} {case[1]} {sorted(case[2])}")
def test_a_part_is_judged_by_what_was_seen(case: tuple[str, PartState, dict[str, Any], str]) -> None:
    name, state, seen, command = case
    report = examine(**seen)
    part = next(part for part in report.parts if part.name == name)
    assert part.state is state, part
    assert part.seen
    if state is PartState.BROKEN:
        assert report.outcome is Outcome.ERROR
    if state in (PartState.ABSENT, PartState.LIMITED):
        assert part.remedy
    lacking = {one.name for one in report.commands if name in one.lacks}
    assert not command or command in lacking
    assert state is not PartState.WORKS or not lacking


def test_what_is_optional_or_not_here_is_no_error() -> None:
    report = examine(
        snapshot=WITHOUT_GPU,
        torch=ABSENT,
        programs={},
        packages={},
        job_packages={},
        kubelet=ABSENT,
        page=False,
    )
    assert report.outcome is not Outcome.ERROR
    assert {one.name for one in report.commands if one.state is PartState.WORKS} >= {
        "explain",
        "lint",
        "merge",
    }
    assert next(one.state for one in report.commands if one.name == "nccl-test") is PartState.ABSENT


def test_a_topic_that_gave_no_answer_never_counts_as_fine() -> None:
    silent = dict.fromkeys(
        (
            "programs",
            "packages",
            "job_packages",
            "torch",
            "trace_rights",
            "state_folder",
            "ports",
            "closed_nodes",
        ),
        LATE,
    )
    report = examine(**silent, kubelet=LATE, page=LATE)
    assert report.outcome is Outcome.ERROR
    for part in report.parts:
        if part.name not in ("nvml", "kernel-log", "history", "shared-memory", "cgroup"):
            assert part.state is PartState.BROKEN, part


def test_a_container_is_told_what_helps_there() -> None:
    machine = replace(WORKSTATION.machine, container=CONTAINER, shared_memory_total_bytes=64 * MIB)
    report = examine(snapshot=replace(WORKSTATION, machine=machine), closed_nodes=("/dev/nvidia0",))
    remedies = {part.name: part.remedy for part in report.parts}
    assert "--gpus all" in remedies["device-files"]
    assert "--shm-size" in remedies["shared-memory"]


def test_text_has_what_to_mend_first_and_a_command_for_it() -> None:
    report = examine(closed_nodes=("/dev/nvidia0",), job_packages=without("horovod"))
    text = render_doctor(report)
    lines = text.splitlines()
    assert lines[0].startswith("ERROR a1: ")
    assert text.index("device-files: this user may not open") < text.index("horovod: it is not installed")
    assert "    Do: pip install 'gpudiag[horovod]'" in lines
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].startswith("Next: gpudiag")
    for part in report.parts:
        assert part.name in text
        assert part.seen in " ".join(render_doctor(report, Style(verbose=True)).split())
