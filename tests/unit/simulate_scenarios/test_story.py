"""A story: chapters in their order, each shown by the files and the NVML of a real machine of that kind."""

import re
from datetime import datetime
from pathlib import Path

import pytest

from gpudiag.compat import UTC
from gpudiag.errors import UsageError
from gpudiag.simulate.loader import load_scenario, load_story, stories
from gpudiag.simulate.motion import move_readings
from gpudiag.simulate.nvml.state import render_state
from gpudiag.simulate.story import Story

NOW = datetime(2026, 11, 1, tzinfo=UTC)
WRITTEN = """
base = "h100x8"
faults = ["busy:0"]
[[story]]
title = "well"
seconds = 10
[[story]]
title = "hot"
seconds = 20
gradual_seconds = 8
faults = ["hot:0"]
[[story]]
title = "lost"
seconds = 10
faults = ["lost:7"]
[[story]]
title = "reset"
seconds = 10
kernel_log = [{ age_seconds = 0, gpu = 7, text = "nvidia {gpu}.0: reset done" }]
"""


@pytest.fixture
def story(tmp_path: Path) -> Story:
    file = tmp_path / "story.toml"
    file.write_text(WRITTEN)
    loaded = load_story(str(file), now=NOW)
    assert loaded is not None
    return loaded


def temperature(story: Story, at: float) -> int:
    degrees: int = story.moment(at).scenario.gpus[0].readings["temperature_celsius"]
    return degrees


def test_chapters_come_in_their_order_and_the_last_one_stays(story: Story) -> None:
    seen = [story.moment(at).chapter.title for at in (0, 9.9, 10, 29, 30, 39.9, 40, 4000)]
    assert seen == ["well", "well", "hot", "hot", "lost", "lost", "reset", "reset"]


def test_readings_go_bit_by_bit_and_the_fault_comes_at_the_end_of_that(story: Story) -> None:
    degrees = [temperature(story, at) for at in (9, 11, 13, 15, 17, 18, 29)]
    assert degrees == sorted(degrees)
    assert len(set(degrees)) == 6
    reasons = [
        "hw_thermal_slowdown" in story.moment(at).scenario.gpus[0].readings["clocks_event_reasons"]
        for at in (17.9, 18)
    ]
    assert reasons == [False, True]
    assert temperature(story, 30) == temperature(story, 0)  # at once, where nothing is gradual


def test_a_log_line_is_as_old_as_its_chapter(story: Story) -> None:
    boot = int(re.search(r"^btime (\d+)$", story.moment(0).scenario.host.files["proc/stat"], re.M)[1])  # type: ignore[index]

    def logged(at: float, word: str) -> list[float]:
        lines = story.moment(at).scenario.host.files["dev/kmsg"].splitlines()
        return [int(line.split(",")[2]) / 1e6 + boot - NOW.timestamp() for line in lines if word in line]

    assert logged(29, "Xid") == []
    assert logged(31, "Xid") == pytest.approx([30, 30], abs=1)  # 79, and 154, which names the action
    assert logged(45, "Xid") == logged(31, "Xid")
    assert logged(45, ": reset done") == pytest.approx([40], abs=1)


def test_processes_are_the_same_from_chapter_to_chapter(story: Story) -> None:
    started = {story.moment(at).scenario.gpus[0].readings["processes"][0]["started_at"] for at in (0, 20, 35)}
    assert len(started) == 1


@pytest.mark.parametrize("name", stories())
def test_a_story_of_ours_can_be_asked_at_any_moment(name: str) -> None:
    story = load_story(name, now=NOW)
    assert story is not None
    seen = []
    for at in range(0, int(story.seconds), 11):
        moment = story.moment(at)
        scenario = move_readings(moment.scenario, at)
        render_state(scenario, [])
        assert scenario.name == name
        assert scenario.jobs is not None, "the jobs of the real machine would be looked at"
        if not seen or seen[-1] != moment.chapter.title:
            seen.append(moment.chapter.title)
    assert seen == [chapter.title for chapter in story.chapters]
    assert load_scenario(name, now=NOW).gpus == story.moment(0).scenario.gpus


def test_a_machine_without_chapters_has_no_story() -> None:
    assert load_story("h100x8+busy:0") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('story = "x"', r"\[\[story\]\]"),
        ("[[story]]\nseconds = 3", "not complete"),
        ('[[story]]\ntitle = "a"\nseconds = 3\nfault = 1', "unknown key 'fault'"),
        ('[[story]]\ntitle = "a"\nseconds = 0', "takes 0 seconds"),
        ('[[story]]\ntitle = "a"\nseconds = inf', "takes inf seconds"),
        ('[[story]]\ntitle = "a"\nseconds = 3\ngradual_seconds = 4', "4 of them gradual"),
        ('[[story]]\ntitle = "a"\nseconds = 3\nfaults = [1]', "`faults` should be a list"),
        ('[[story]]\ntitle = "a"\nseconds = 3\nfaults = ["lost:9"]', "GPUs 0 to 7"),
        ('[[story]]\ntitle = "a"\nseconds = 3\nfaults = ["job-hangs"]', "no job of four ranks"),
    ],
)
def test_what_cannot_be_is_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "story.toml"
    file.write_text(f'base = "h100x8"\n{text}\n')
    with pytest.raises(UsageError, match=words):
        load_story(str(file))
