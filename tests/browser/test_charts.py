"""Charts over time: pointing, dragging, links to a moment, pictures to save, and what is not there yet or not
at all.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.stub_documents import Machine
from tests.browser.stub_service import stub_service
from tests.browser.watched_page import Browsing, WatchedPage

PNG = b"\x89PNG\r\n\x1a\n"
POWER = "Power of each GPU over time"


@pytest.fixture(scope="module")
def address(busy_machine: Machine) -> Iterator[str]:
    with stub_service(busy_machine) as (url, _):
        yield url


def open_charts(watched: WatchedPage, view: str = "") -> Any:
    """The field of the power of all GPUs, once its history is there."""
    watched.open(view)
    watched.page.locator("figure.chart canvas").nth(7).wait_for()
    watched.sees("Throttling and events")
    watched.page.get_by_text("reading them").wait_for(state="detached")
    field = watched.page.get_by_label(POWER)
    field.scroll_into_view_if_needed()
    return field


def place(field: Any, across: float, row: float = 0.5) -> tuple[float, float]:
    """That share of the field's width, in the middle of that row of eight."""
    box = field.bounding_box()
    return box["x"] + across * box["width"], box["y"] + row / 8 * box["height"]


def test_pointing_at_a_gpu_isolates_it_in_all_charts_and_in_the_table(
    browsing: Browsing, address: str
) -> None:
    with browsing.page(address) as watched:
        field = open_charts(watched)
        strips = watched.page.locator("figure.chart:has(canvas)")
        watched.page.mouse.move(*place(field, 0.5, 4.5))
        watched.page.locator(".veil").first.wait_for(state="attached")
        lanes = 1
        assert watched.page.locator(".veil").count() == 2 * (strips.count() + lanes)
        assert watched.page.locator(".frame .cursor").count() == strips.count() + lanes
        assert watched.page.locator("ol.numbers li.on").all_inner_texts() == [
            text for text in watched.page.locator("ol.numbers li:nth-child(5)").all_inner_texts()
        ]
        assert watched.page.locator("table.gpus tr.on").locator("th").inner_text().startswith("GPU 4")
        watched.page.locator("table.gpus tbody tr").nth(2).hover()
        watched.page.locator("ol.numbers li.on").first.wait_for()
        assert watched.page.locator("ol.numbers li:nth-child(3).on").count() == strips.count()
        watched.page.mouse.move(0, 0)
        watched.page.locator(".veil").first.wait_for(state="detached")


def test_a_click_leads_to_a_moment_and_its_address_to_the_same(browsing: Browsing, address: str) -> None:
    with browsing.page(address) as watched:
        field = open_charts(watched)
        watched.page.mouse.click(*place(field, 0.25))
        marked = watched.page.locator(".pinned b")
        marked.wait_for()
        settings = watched.page.evaluate(
            "Object.fromEntries(new URLSearchParams(location.hash.split('?')[1]))"
        )
        first, last, at = (float(settings[name]) for name in ("from", "to", "at"))
        assert abs(at - (first + 0.25 * (last - first))) < 10
        moment = watched.page.locator(".frame .moment").first
        moment.wait_for()
        when, where = marked.inner_text(), moment.get_attribute("style")
        watched.page.reload()
        moment.wait_for()
        assert (marked.inner_text(), moment.get_attribute("style")) == (when, where)
        watched.open(f"history?at={settings['at']}")  # the moment alone: five minutes on both sides
        watched.page.locator(".frame .moment[style*='50']").first.wait_for()
        watched.page.get_by_role("link", name="Unmark").click()
        moment.wait_for(state="detached")
        assert watched.complaints == []


def test_dragging_looks_closer(browsing: Browsing, address: str) -> None:
    with browsing.page(address) as watched:
        field = open_charts(watched)
        watched.page.mouse.move(*place(field, 0.5))
        watched.page.mouse.down()
        watched.page.mouse.move(*place(field, 0.75))
        watched.page.locator(".frame .selection").wait_for()
        watched.page.mouse.up()
        watched.page.wait_for_function("() => location.hash.startsWith('#/history?from=')")
        span = watched.page.evaluate(
            "(s => s.get('to') - s.get('from'))(new URLSearchParams(location.hash.split('?')[1]))"
        )
        assert 140 <= span <= 160  # a quarter of ten minutes


def test_a_picture_of_a_chart_is_saved(browsing: Browsing, address: str) -> None:
    with browsing.page(address) as watched:
        open_charts(watched)
        saved = {}
        for chart, kind in (("Power", "PNG"), ("Power", "SVG"), ("PCIe throughput", "SVG")):
            watched.page.get_by_role("button", name=f"{chart}: save a picture").click()
            with watched.page.expect_download() as download:
                watched.page.get_by_role("button", name=f"{chart}: save as {kind}").click()
            saved[chart, kind] = download.value.path().read_bytes()
            assert download.value.suggested_filename.startswith("gpudiag-h100-1-")
        assert saved["Power", "PNG"].startswith(PNG)
        assert len(saved["Power", "PNG"]) > 10_000
        svg = saved["Power", "SVG"].decode()
        for part in ("Power, W", "h100-1", "simulated: h100x8", "GPU 7", "data:image/png;base64,"):
            assert part in svg
        watched.open("gpu/0")
        watched.page.locator("figure.chart .lines path").first.wait_for(state="attached")
        watched.page.get_by_role("button", name="PCIe throughput: save a picture").click()
        with watched.page.expect_download() as download:
            watched.page.get_by_role("button", name="PCIe throughput: save as SVG").click()
        lines = download.value.path().read_text()
        assert lines.count("<path") > 2
        assert ">out</text>" in lines
        assert watched.complaints == []


def test_the_axis_of_a_line_fits_it(browsing: Browsing, address: str) -> None:
    with browsing.page(address) as watched:
        watched.open("gpu/0")
        figure = watched.page.locator("figure.chart", has_text="Power").first
        ticks = "Number(document.querySelectorAll('figure.chart .lines')[1]?.querySelector('.ticks li').textContent)"
        watched.page.wait_for_function(f"() => {ticks} < 640")  # the history is there, not only what is new
        marks = [float(text) for text in figure.locator(".ticks li").all_text_contents()]
        assert marks == sorted(marks)
        assert 500 < marks[0] < 640 < marks[-1] <= 700  # 615 to 680 W are drawn


def test_loading_and_empty_are_different(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        held: list[Any] = []
        watched.page.route("**/api/v1/history*", lambda route: held.append(route))
        watched.open()
        watched.page.get_by_text("reading them").wait_for()
        state.silent = True
        watched.open("history?last=3600")
        watched.sees("Reading the history")
        nothing = {"step_seconds": 2, "resolution_seconds": 1, "times": [], "devices": [], "events": []}
        for route in held:
            route.fulfill(json=nothing)
        watched.sees("Nothing is stored for this time.")
        assert watched.page.get_by_text("Reading the history").count() == 0
