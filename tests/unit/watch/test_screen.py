"""The application on Textual's own test terminal: what it draws is the picture, and what keys and the mouse
do to it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("textual", reason="the extra [watch] is not installed")

from gpudiag.watch.choice import Choice
from gpudiag.watch.compose import compose
from gpudiag.watch.frame import Frame
from gpudiag.watch.glyphs import BLOCKS
from gpudiag.watch.screen.app import WatchApp
from gpudiag.watch.screen.dialogs import FilterLine, Page, Question
from gpudiag.watch.screen.pane import Pane, changed_cells
from gpudiag.watch.view import FAIL, GOOD, Span, text_of
from tests.unit.watch.frames import STORY, frame_of, now_of
from tests.unit.watch.view_text import render_view


class FixedFeed:
    """Frames that a test changes; `news` tells the application."""

    def __init__(self, *frames: Frame) -> None:
        self.frames: tuple[Frame, ...] = frames or (frame_of(),)
        self.note = ""
        self.news: Callable[[], None] = lambda: None
        self.sought: list[float] = []
        self.is_held = False
        self.is_closed = False
        self.error: Exception | None = None

    async def run(self, changed: Callable[[], None]) -> None:
        self.news = changed
        try:
            while self.error is None:
                await asyncio.sleep(0.01)
            raise self.error
        finally:
            self.is_closed = True

    def seek(self, seconds: float) -> None:
        self.sought.append(seconds)

    def hold(self, *, is_held: bool) -> None:
        self.is_held = is_held


def app_of(feed: FixedFeed) -> WatchApp:
    return WatchApp(feed, BLOCKS, clock=now_of)


def drawn(app: WatchApp) -> list[str]:
    """The lines on the terminal, as Textual has composed them."""
    screen = app.screen
    width, height = screen.size
    return [strip.text.rstrip() for strip in screen._compositor.render_strips()][:height] or [""] * (
        width > 0
    )


async def settled(pilot) -> None:
    await pilot.pause()
    await pilot.pause()


def run(
    scenario: Callable[[WatchApp, object], object], size: tuple[int, int], feed: FixedFeed | None = None
) -> FixedFeed:
    """Run a test's steps on an application of that size; the feed has ended afterwards."""
    feed = feed or FixedFeed()

    async def steps() -> None:
        app = app_of(feed)
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            await scenario(app, pilot)
        await app.stop_feed()
        assert feed.is_closed

    asyncio.run(steps())
    return feed


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_the_terminal_shows_the_picture(size: tuple[int, int]):
    async def look(app, pilot):
        lines = drawn(app)
        finding = app.query_one("#findings", Pane).key
        view = compose((frame_of(),), Choice(finding=finding), size[0], BLOCKS, now_of())
        wanted = [line for line in render_view(view).splitlines() if line]
        assert len(lines) == size[1]
        assert lines[0] == wanted[0]
        assert lines[-1] == text_of(view.footer).rstrip()
        shown = [line for line in lines if line]
        if size[1] >= 40:  # a small window shows the beginning of each part
            assert shown == wanted
        else:
            assert [line for line in shown if line not in wanted] == []

    run(look, size)


def test_only_the_cells_that_differ_are_drawn():
    line = (Span("GPU 0 "), Span("98%", GOOD), Span(" ok"))
    assert changed_cells(line, line, 40) == (0, 0)
    assert changed_cells(line, (Span("GPU 0 "), Span("91%", GOOD), Span(" ok")), 40) == (7, 1)
    assert changed_cells(line, (Span("GPU 0 "), Span("98%", FAIL), Span(" ok")), 40) == (6, 3)
    assert changed_cells(line, (Span("GPU 0"),), 40) == (0, 40)
    assert changed_cells((Span("\u6f22"),), (Span("\u5b57"),), 40) == (0, 40)  # two cells each


def test_keys_sort_filter_and_choose_a_gpu():
    async def use(app, pilot):
        await pilot.press("t")
        assert app.choice.is_tree is False
        for _ in range(3):
            await pilot.press("s")
        assert app.choice.sort == "memory"
        await pilot.press("S")
        assert app.choice.is_reversed
        await pilot.press("slash", *"gpu1", "enter")
        await settled(pilot)
        assert app.choice.filter == "gpu1"
        assert not any("41200" in line for line in drawn(app))
        await pilot.press("slash", "escape")
        assert app.choice.filter == "gpu1"
        await pilot.press("down", "enter")
        await settled(pilot)
        assert app.choice.gpu == "1"
        await pilot.press("enter")
        await settled(pilot)
        assert app.choice.gpu is None
        await pilot.press("c")
        assert app.choice.chart == "sm_activity_percent"

    run(use, (120, 40))


def test_the_mouse_sorts_by_a_heading_and_chooses_a_row():
    async def use(app, pilot):
        pane = app.query_one("#processes", Pane)
        place = next(place for place in pane.table.places if place.sort == "memory")
        await pilot.click("#processes", offset=(place.first + 1, 0))
        await settled(pilot)
        assert app.choice.sort == "memory"
        await pilot.click("#gpus", offset=(5, 4))
        await settled(pilot)
        assert app.query_one("#gpus", Pane).key == pane.app.frame.live.devices[3].id.uuid
        assert app.focused is app.query_one("#gpus", Pane)

    run(use, (120, 40))


def test_the_cursor_stays_on_its_gpu_when_another_is_gone():
    feed = FixedFeed()

    async def use(app, pilot):
        await pilot.press("down", "down", "down")
        key = app.query_one("#gpus", Pane).key
        frame = feed.frames[0]
        feed.frames = (replace(frame, live=replace(frame.live, devices=frame.live.devices[1:])),)
        feed.news()
        await pilot.pause(0.3)
        assert app.query_one("#gpus", Pane).key == key
        feed.frames = (replace(frame, live=replace(frame.live, devices=())),)
        feed.news()
        await pilot.pause(0.3)
        assert app.query_one("#gpus", Pane).key is None

    run(use, (80, 24), feed)


def test_a_paused_picture_stands_still_and_news_come_afterwards():
    feed = FixedFeed()

    async def use(app, pilot):
        await pilot.press("space")
        assert feed.is_held
        frame = feed.frames[0]
        feed.frames = (replace(frame, live=replace(frame.live, headline="another story")),)
        feed.news()
        await pilot.pause(0.3)
        assert "another story" not in drawn(app)[0]
        assert drawn(app)[0].startswith("PAUSED")
        await pilot.press("space")
        await settled(pilot)
        assert "another story" in drawn(app)[0]
        await pilot.press("left", "right")
        assert feed.sought == [-10.0, 10.0]

    run(use, (80, 24), feed)


def test_a_signal_and_a_test_ask_first_and_esc_does_nothing():
    async def use(app, pilot):
        await pilot.press("x")
        await settled(pilot)
        assert isinstance(app.screen, Question)
        await pilot.press("escape")
        await settled(pilot)
        assert len(app.screen_stack) == 1
        await pilot.press("tab", "tab", "k")
        await settled(pilot)
        assert isinstance(app.screen, Page)  # the machine is simulated: no signal can be sent
        assert "no signal can be sent" in drawn(app)[0]
        await pilot.press("escape", "question_mark")
        await settled(pilot)
        assert any("gpudiag hang" in line for line in drawn(app))

    run(use, (80, 24))


def test_of_another_machine_commands_are_named_and_not_run():
    async def use(app, pilot):
        for key in ("h", "x", "k"):
            await pilot.press(key)
            await settled(pilot)
            assert isinstance(app.screen, Page), key
            assert "run `" in drawn(app)[0], key
            await pilot.press("escape")
            await settled(pilot)

    run(use, (120, 30), FixedFeed(replace(frame_of(), is_here=False)))


def test_enter_on_a_machine_shows_it():
    feed = FixedFeed(replace(frame_of(), name="a"), replace(frame_of("h100x8"), name="b"))

    async def use(app, pilot):
        app.query_one("#hosts", Pane).focus()
        await pilot.press("end", "enter")
        await settled(pilot)
        assert app.choice.host == "b"
        assert drawn(app)[0].startswith("b ")

    run(use, (120, 50), feed)


@pytest.mark.parametrize("size", [(10, 3), (1, 1), (40, 8), (300, 100)])
def test_any_window_is_drawn_and_can_be_resized(size: tuple[int, int]):
    async def use(app, pilot):
        assert len(drawn(app)) == size[1]
        await pilot.resize_terminal(100, 30)
        await settled(pilot)
        assert len(drawn(app)) == 30
        assert any("STATE" in line for line in drawn(app))

    run(use, size)


def test_a_bug_of_the_feed_ends_the_view_and_is_kept_for_the_command_line():
    feed = FixedFeed()

    async def steps():
        app = app_of(feed)
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(pilot)
            feed.error = RuntimeError("a bug")
            await pilot.pause(0.2)
        await app.stop_feed()
        assert str(app.failure) == "a bug"

    asyncio.run(steps())


def test_the_filter_line_begins_with_the_words_that_are_there():
    async def use(app, pilot):
        app.choice = replace(app.choice, filter="ann")
        await pilot.press("slash")
        await settled(pilot)
        assert isinstance(app.screen, FilterLine)
        await pilot.press("backspace", "enter")
        await settled(pilot)
        assert app.choice.filter == "an"

    run(use, (80, 24), FixedFeed(frame_of(STORY)))
