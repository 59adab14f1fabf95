from dataclasses import replace

import pytest

from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.model.device import Snapshot, SourceState
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing
from gpudiag.render import overview_text
from gpudiag.render.overview_text import render_overview
from gpudiag.render.style import columns
from gpudiag.runs.instant import judge_snapshot
from tests.unit.checks.machines import make_bare_machine, make_broken_snapshot
from tests.unit.model.nouns import make_snapshot
from tests.unit.render.rows import LOST, judge, make_busy, make_idle, make_process, make_silent

SICK = """\
FAIL a1: 4x H100 80GB, driver 580.105.08: 3 healthy, 1 lost (in 0.3 s)
  GPU 3 (1c:00.0) is off the bus: GPU is lost (NVML 15) -> Drain the machine and
    power-cycle it; if the GPU is lost again, have it replaced.
  Busy GPUs 0-1 (ann train.py 6h). Free: GPU 2. Not tested: speed, data,
    network, torch, history
Next: gpudiag list | preflight | nccl-test | serve | explain gpu.lost | --help
"""


@pytest.fixture(autouse=True)
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line names a command that needs torch, where there is one; the tests run without it too."""
    monkeypatch.setattr(overview_text, "has_module", lambda name: True)


def render(snapshot: Snapshot) -> str:
    return render_overview(judge_snapshot(snapshot), *judge(snapshot), 0.31)


def test_a_machine_with_a_lost_gpu() -> None:
    snapshot = make_snapshot(make_busy(0), make_busy(1), make_idle(2), make_silent(3, LOST))
    assert render(snapshot) == SICK


def test_a_healthy_machine_passes_in_three_lines() -> None:
    snapshot = make_snapshot(make_idle(0), make_idle(1), machine=make_bare_machine(gpus=2))
    lines = render(snapshot).splitlines()
    assert lines[0].startswith("PASS a1: 2x H100 80GB, driver 580")
    assert "Free: GPUs 0 1." in lines[1]
    assert len(lines) == 3


def test_a_machine_without_a_trace_of_a_gpu_is_told_so_and_what_to_try() -> None:
    text = render(make_broken_snapshot(SourceState.LIBRARY_ABSENT, make_bare_machine()))
    assert text.startswith("ERROR a1: no GPU and no trace of one")
    assert "gpudiag nccl-test" in text
    assert "gpudiag simulate" in text


def test_without_torch_no_command_that_needs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_text, "has_module", lambda name: False)
    sick = make_snapshot(make_busy(0), make_silent(1, LOST))
    assert "| doctor | serve" in render(sick)
    empty = render(make_broken_snapshot(SourceState.LIBRARY_ABSENT, make_bare_machine()))
    assert "gpudiag doctor" in empty
    assert "nccl-test" not in render(sick) + empty


def test_a_machine_that_never_had_a_gpu_does_not_pass_because_none_has_gone() -> None:
    snapshot = make_broken_snapshot(SourceState.LIBRARY_ABSENT, make_bare_machine())
    report = judge_snapshot(snapshot, known_gpus_of(snapshot))
    assert any(result.outcome is Outcome.PASS for result in report.results)
    assert report.verdict is Outcome.ERROR


def test_a_broken_driver_is_a_failure_with_its_remedy() -> None:
    machine = make_bare_machine(gpus=8)
    words = "no driver: run `modprobe nvidia`"
    text = render(make_broken_snapshot(SourceState.DRIVER_NOT_LOADED, machine, words))
    assert text.startswith("FAIL a1: no working GPU")
    assert "no driver -> Run `modprobe nvidia`." in " ".join(text.split())
    assert "gpu.lost, gpu.hung, gpu.count" in " ".join(text.split())


def test_a_desktop_that_draws_keeps_no_gpu_busy() -> None:
    drawing = replace(make_process(), kind="graphics")
    text = render(make_snapshot(make_idle(0, processes=(drawing,))))
    assert "Busy none. Free: GPU 0." in text


def test_many_faults_are_counted_and_not_all_told() -> None:
    text = render(make_snapshot(*(make_silent(place, LOST) for place in range(8))))
    assert "GPUs 0-7: each is off the bus" in text
    assert "more: gpudiag list" not in text
    assert max(len(line) for line in text.splitlines()) <= columns()


def test_a_machine_of_unknown_driver_and_simulated_says_both() -> None:
    text = render(make_snapshot(make_idle(0), driver_version=Missing(LOST.reason), simulated="h100x8"))
    assert "SIMULATED h100x8" in text
    assert "driver" not in text.splitlines()[0]


def test_a_gpu_with_two_faults_does_not_hide_the_next_sick_gpu() -> None:
    snapshot = make_snapshot(*(make_silent(place, LOST) for place in range(3)))
    findings, candidates = judge(snapshot)
    lost = [finding for finding in findings if finding.code == "gpu.lost"]
    again = tuple(replace(lost[0], code=code) for code in ("xid.off_the_bus", "pcie.width", "nvlink.down"))
    text = render_overview(judge_snapshot(snapshot), (lost[0], *again, *lost[1:]), candidates, 0.3)
    assert [line.split("(")[0] for line in text.splitlines() if "is off the bus" in line] == [
        "  GPUs 0-2: each is off the bus: GPU is lost ",
        "  GPU 0 ",
    ]
    assert "and 2 more" in text
