"""The picture as text: what stands in which row, at every width, without a terminal."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.model.reading import Missing, MissingReason
from gpudiag.render.style import cells_of
from gpudiag.watch.choice import CHARTS, SORTS, Choice
from gpudiag.watch.compose import compose, share_lines
from gpudiag.watch.frame import Frame
from gpudiag.watch.glyphs import ASCII, BLOCKS, Glyphs, choose_glyphs
from gpudiag.watch.view import View, text_of
from tests.unit.watch.frames import STORY, frame_of, now_of
from tests.unit.watch.view_text import lines_of, render_view
from tests.walking import walk

PICTURES = Path(__file__).parents[2] / "corpus/watch"


def picture(
    spec: str = STORY, choice: Choice | None = None, width: int = 80, glyphs: Glyphs = BLOCKS, *others: Frame
) -> View:
    return compose((frame_of(spec), *others), choice or Choice(), width, glyphs, now_of(spec))


def rows_of(view: View, name: str) -> list[str]:
    return [text_of(line).rstrip() for line in lines_of(getattr(view, name))]


def steady(text: str) -> str:
    """The text without its clock."""
    return re.sub(r"\d\d:\d\d:\d\d UTC", "00:00:00 UTC", text)


@pytest.mark.parametrize(("width", "glyphs"), [(80, BLOCKS), (120, BLOCKS), (200, BLOCKS), (80, ASCII)])
def test_the_picture_is_as_it_was_looked_at(width: int, glyphs: Glyphs):
    """After a change: look at what `python -m tests.unit.watch.write_pictures` writes."""
    name = f"{width}{'-ascii' if glyphs is ASCII else ''}.txt"
    assert steady(render_view(picture(width=width, glyphs=glyphs))) == (PICTURES / name).read_text("utf-8")


def test_every_line_fits_at_every_width():
    frames = (frame_of(), replace(frame_of("h100x8+lost:3", "b"), problem="it does not answer"))

    def fits(width: int) -> None:
        view = compose(frames, Choice(filter="train", note="REPLAY 0:00 of 1:00"), width, BLOCKS, now_of())
        tables = [view.hosts, view.gpus, view.findings, view.processes]
        lines = [
            *view.header,
            view.footer,
            *(line for table in tables if table for line in (table.heading, *lines_of(table))),
        ]
        if width >= 60:  # below, the columns that are always there are cut by the screen
            assert [cells_of(text_of(line)) for line in lines if cells_of(text_of(line)) > width + 1] == []

    walk(fits, range(20, 260))


def test_a_gpu_that_gives_nothing_says_why_in_its_row():
    lost = rows_of(picture("h100x8+lost:3"), "gpus")[3]
    assert re.match(r" +3 H100 80GB +the GPU is lost .*LOST$", lost)
    frame = frame_of("h100x8")
    row = frame.live.devices[6]
    silent = Missing(MissingReason.TIMED_OUT, "no answer from nvmlDeviceGetName within 2.0 s")
    live = replace(frame.live, devices=(replace(row, responding=silent, health="fail"),))
    view = compose((replace(frame, live=live),), Choice(), 80, BLOCKS, now_of("h100x8"))
    assert re.match(r" +6 H100 80GB +no answer .*HUNG$", rows_of(view, "gpus")[0])


def test_a_gpu_that_was_not_reported_for_a_while_has_a_gap_in_its_chart():
    assert BLOCKS.chart((0.0, None, 100.0), 5, 0.0, 100.0) == "  ▁ █"
    assert ASCII.chart((0.0, 50.0, 100.0), 3, 0.0, 100.0) == "_+#"
    assert BLOCKS.bar(0.5, 4) == "██  "
    assert BLOCKS.bar(7.0, 3) == "███"


def test_mig_instances_are_rows_below_their_gpu():
    rows = rows_of(picture("h100-mig+busy:0", width=120), "gpus")
    assert rows[1].split()[:3] == ["0:0", "MIG", "3g.40gb"]
    assert "ann train.py" in rows[1]
    assert "ann" not in rows[2]


def test_a_reading_that_no_gpu_has_takes_no_column():
    assert "TENS" in text_of(picture(width=200).gpus.heading)
    assert "FAN" not in text_of(picture(width=200).gpus.heading)
    old = text_of(picture("v100x8", width=200).gpus.heading)
    assert "TEMP" in old


def test_processes_stand_below_what_started_them_or_in_a_list():
    tree = rows_of(picture(width=120), "processes")
    assert [line.split()[0] for line in tree] == ["41100", "0", "1"]
    assert "├─ python train.py" in tree[1]
    assert "└─ python train.py" in tree[2]
    assert re.match(r" +0 +41200 ann +63\.3 +91% +118% +9\.0 R +6 h", tree[1])
    flat = rows_of(picture(choice=Choice(is_tree=False), width=120), "processes")
    assert [line.split()[1] for line in flat] == ["41200", "41201"]


def test_processes_are_sorted_filtered_and_of_one_gpu():
    def pids(choice: Choice) -> list[str]:
        return [
            line.split()[1] for line in rows_of(picture(choice=replace(choice, is_tree=False)), "processes")
        ]

    assert pids(Choice(sort="pid", is_reversed=True)) == ["41201", "41200"]
    assert pids(Choice(filter="ann gpu1")) == ["41201"]
    assert pids(Choice(filter="nobody")) == []
    assert pids(Choice(gpu="0")) == ["41200"]
    walk(lambda sort: sorted(pids(Choice(sort=sort))) == ["41200", "41201"], SORTS)


def test_the_finding_under_the_cursor_is_whole_where_they_are_many():
    one = rows_of(picture(), "findings")
    assert one[0].startswith("FAIL GPU 5 ")
    assert "temperature.gpu_too_hot" in " ".join(one)
    assert any(line.startswith("     → ") for line in one)  # the remedy
    frame = frame_of("h100x8+hot:5+lost:3")
    first = compose((frame,), Choice(), 80, BLOCKS, now_of()).findings
    last = compose((frame,), Choice(finding=first.rows[-1].key), 80, BLOCKS, now_of()).findings
    assert len(first.rows) >= 2
    assert len(first.rows[0].lines) > 1
    assert len(first.rows[-1].lines) == 1
    assert len(last.rows[0].lines) == 1
    assert len(last.rows[-1].lines) > 1
    assert [row.key for row in first.rows] == [row.key for row in last.rows]


def test_nothing_is_called_well_before_it_was_judged():
    frame = frame_of("h100x8")
    unjudged = replace(frame, live=replace(frame.live, verdict=None), findings=())
    assert (
        text_of(compose((unjudged,), Choice(), 80, BLOCKS, 0.0).findings.heading).strip()
        == "FINDINGS not judged yet"
    )


def test_the_worst_machine_stands_first_and_a_silent_one_says_since_when():
    well, bad = frame_of("h100x8", "a"), frame_of(STORY, "z")
    silent = replace(well, name="m", problem="it does not answer", received_at=now_of() - 90)
    view = compose((well, silent, bad), Choice(), 120, BLOCKS, now_of())
    assert view.hosts is not None
    assert [line.split()[0] for line in rows_of(view, "hosts")] == ["z", "m", "a"]
    assert "it does not answer (last answer 90 s ago)" in rows_of(view, "hosts")[1]
    shown = compose((well, silent, bad), Choice(host="m"), 100, BLOCKS, now_of())
    assert "m: it does not answer; last answer 90 s ago" in text_of(shown.header[1])


def test_a_name_from_outside_steers_no_terminal():
    frame = frame_of()
    row = frame.live.devices[0]
    evil = replace(row.processes[0], command="python \x1b[2J\x1b]0;x\x07 \u202e.py", user="a\nb")
    live = replace(frame.live, host="h\x1b[1m", devices=(replace(row, name="X\x1b[5m", processes=(evil,)),))
    text = render_view(compose((replace(frame, name="n\x1b[7m", live=live),), Choice(), 200, BLOCKS, 0.0))
    assert re.sub(r"[^\x00-\x1f\x7f-\x9f\u202e]", "", text).strip("\n") == ""


def test_the_chart_shows_what_was_chosen():
    def heading(chart: str) -> bool:
        return CHARTS[chart] in text_of(picture(choice=Choice(chart=chart), width=120).gpus.heading)

    walk(lambda chart: heading(chart), CHARTS)


def test_lines_are_shared_so_that_each_part_has_its_least_first():
    assert share_lines(20, (9, 5, 4), (4, 2, 3), 2) == (9, 5, 6)
    assert share_lines(10, (9, 5, 40), (4, 2, 3), 2) == (5, 2, 3)
    assert share_lines(3, (9, 5, 4), (4, 2, 3), 2) == (3, 0, 0)
    assert share_lines(0, (9, 5, 4), (4, 2, 3), 2) == (0, 0, 0)


@pytest.mark.parametrize(
    ("environment", "glyphs"),
    [
        ({"LANG": "en_US.UTF-8", "TERM": "xterm-256color"}, BLOCKS),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, ASCII),
        ({"LANG": "de_DE.ISO-8859-1"}, ASCII),
        ({"TERM": "screen-256color"}, BLOCKS),  # no locale at all, as in a container
        ({"LANG": "C.UTF-8", "TERM": "linux"}, ASCII),
    ],
)
def test_characters_are_those_that_the_terminal_has(environment: dict[str, str], glyphs: Glyphs):
    assert choose_glyphs(environment) is glyphs


def test_ascii_pictures_are_ascii():
    assert render_view(picture(width=200, glyphs=ASCII)).isascii()
