from dataclasses import replace

import pytest

from gpudiag.checks.traces import gpu_traces
from gpudiag.model.device import DeviceView, Disagreement, Snapshot, SourceState, SourceStatus
from gpudiag.model.reading import NOT_ASKED
from gpudiag.reference.reading_names import name_state
from gpudiag.render.sources_text import render_absent, render_sources
from gpudiag.render.style import Style, columns, wants_colour
from gpudiag.units import GIB
from tests.unit.checks.machines import ABSENT, make_bare_machine, make_broken_snapshot
from tests.unit.model.nouns import make_snapshot
from tests.unit.render.rows import make_idle


def make_view(source: str, place: int, uuid: str) -> DeviceView:
    name = "NVIDIA H100 80GB HBM3"
    return DeviceView(source, place, uuid, ABSENT, name, 79 * GIB, GIB, 78 * GIB, 3, ABSENT)


def test_views_stand_beside_their_gpu_whatever_their_order() -> None:
    views = (make_view("gputil", 0, "GPU-1"), make_view("gputil", 1, "GPU-0"), make_view("torch", 0, "GPU-1"))
    lines = render_sources(make_snapshot(make_idle(0), make_idle(1), views=views)).splitlines()
    first, second = (line.split() for line in lines if line.startswith("  ") and "H100" in line)
    assert first[-6:] == ["1", "1.0/79.0", "3%", "-", "-", "-"]
    assert second[-6:] == ["0", "1.0/79.0", "3%", "0", "1.0/79.0", "3%"]


def test_a_gpu_that_only_another_source_shows_is_a_row() -> None:
    text = render_sources(make_snapshot(make_idle(0), views=(make_view("gputil", 5, "GPU-other"),)))
    assert [line for line in text.splitlines() if line.startswith("  - ") and " 5 " in line]


def test_each_disagreement_comes_with_its_reason_and_whether_it_is_explained() -> None:
    known = Disagreement("count", {"nvml": 8, "torch": 1}, "CUDA_VISIBLE_DEVICES=0", expected=True)
    unknown = replace(known, field="name", reason="nothing explains it", expected=False, uuid="GPU-3")
    text = render_sources(make_snapshot(make_idle(0), disagreements=(known, unknown)))
    assert "explained: number of GPUs: nvml 8, torch 1: CUDA_VISIBLE_DEVICES=0" in text
    assert "DIFFERS: product name of GPU-3" in text


@pytest.mark.parametrize(
    ("answering", "words"),
    [
        (("nvml", "gputil", "torch"), "No disagreement between the sources."),
        (("nvml", "torch"), "No disagreement between the sources."),
        (("nvml",), "Not compared: only nvml shows GPUs."),
        (("gputil",), "Not compared: only gputil shows GPUs."),
    ],
)
def test_agreement_is_reported_only_of_sources_that_answered(answering: tuple[str, ...], words: str) -> None:
    states = {
        name: SourceState.OK if name in answering else SourceState.TIMED_OUT
        for name in ("nvml", "gputil", "torch")
    } | {"host": SourceState.OK, "kernel_log": SourceState.OK}
    statuses = tuple(SourceStatus(name, state) for name, state in states.items())
    text = render_sources(replace(make_snapshot(make_idle(0)), sources=statuses, disagreements=()))
    assert text.splitlines()[-1] == words


def test_where_one_source_was_asked_nothing_is_compared() -> None:
    statuses = (SourceStatus("nvml", SourceState.OK), SourceStatus("torch", SourceState.NOT_ASKED))
    text = render_sources(replace(make_snapshot(make_idle(0)), sources=statuses, disagreements=()))
    assert "ompared" not in text
    assert "disagreement" not in text


def test_a_machine_without_a_gpu_shows_what_each_source_said() -> None:
    statuses = (
        SourceStatus("nvml", SourceState.LIBRARY_ABSENT, "libnvidia-ml.so.1 is not here", 0.01),
        SourceStatus("gputil", SourceState.LIBRARY_ABSENT, "nvidia-smi is not on the PATH", NOT_ASKED),
        SourceStatus("torch", SourceState.NO_DEVICES, "a CPU build of torch", 1.4, 0),
    )
    snapshot = replace(make_broken_snapshot(SourceState.OK, make_bare_machine()), sources=statuses)
    text = render_absent(snapshot, gpu_traces(snapshot))
    assert text.startswith("No GPU on a1, and no trace of one")
    for status in statuses:
        assert str(status.reason) in text
        assert name_state(status.state) in text
    assert max(len(line) for line in text.splitlines()) <= columns()


def test_a_machine_whose_gpu_does_not_work_is_not_called_one_without() -> None:
    snapshot = make_broken_snapshot(SourceState.VERSION_MISMATCH, make_bare_machine(gpus=8))
    text = render_absent(snapshot, gpu_traces(snapshot), Style(colour=True))
    assert "No working GPU on a1, and traces of one: 8 NVIDIA GPUs on the PCI bus" in text.replace("\n", " ")


def simulated(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, simulated="none")


def test_a_simulated_machine_without_a_gpu_says_that_it_is_simulated() -> None:
    snapshot = simulated(make_broken_snapshot(SourceState.LIBRARY_ABSENT, make_bare_machine()))
    assert render_absent(snapshot, ()).startswith("SIMULATED none")


@pytest.mark.parametrize(
    ("environment", "is_terminal", "colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),  # set and empty is not set, says no-color.org
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colour_is_what_the_environment_says(
    environment: dict[str, str], is_terminal: bool, colour: bool
) -> None:
    assert wants_colour(is_terminal, environment) is colour


def test_a_long_name_of_a_source_keeps_the_columns_in_line() -> None:
    statuses = (
        SourceStatus("gputil", SourceState.OK, None, 0.01, 1),
        SourceStatus("kernel_log", SourceState.OK, "read from /dev/kmsg", 0.01),
    )
    heading, *lines = render_sources(make_snapshot(make_idle(0), sources=statuses)).splitlines()[:3]
    assert [line[heading.index("STATE") :].split()[0] for line in lines] == ["ok", "ok"]
    assert lines[1].index("read from") == heading.index("WHAT")
