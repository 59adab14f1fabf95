"""The page on the real service: living numbers, faults that come and go, runs, history over a restart."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.live_service import LiveService, live_service
from tests.browser.watched_page import Browsing, WatchedPage

HEALTHY = "h100x8+busy:0+busy:1"
WITHIN_MS = 10_000  # what the page promises: the right state within 10 s
RUN_WITHIN_MS = 90_000  # ranks import torch on a busy machine
VIEWS = {
    "": "Throttling and events",
    "gpu/0": "Compute capability",
    "processes": "By user",
    "checks": "checks that disturb nothing",
    "history": "Drag over a chart to look closer.",
    "topology": "Slots",
    "sources": "Each GPU as each source sees it",
    "runs": "Start preflight",
    "explain/gpu.lost": "What it means",
}


@pytest.fixture(scope="module")
def service(built_page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with live_service(HEALTHY, tmp_path_factory.mktemp("state")) as service:
        yield service


@pytest.fixture
def watched(browsing: Browsing, service: LiveService) -> Iterator[WatchedPage]:
    service.change_machine(HEALTHY)
    with browsing.page(service.address) as watched:
        watched.page.goto(f"{service.address}#token={service.token}")
        watched.page.locator("table.gpus").wait_for()
        yield watched


@pytest.mark.sliced
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_the_real_service_is_whole(watched: WatchedPage, view: str) -> None:
    watched.open(view)
    watched.sees(VIEWS[view])
    assert watched.flaws_in_every_look() == []
    assert watched.complaints == []
    assert watched.strangers() == []


def test_the_numbers_are_in_the_first_response(browsing: Browsing, service: LiveService) -> None:
    with browsing.page(service.address, java_script_enabled=False) as watched:
        watched.page.goto(service.address)
        inlined = watched.page.locator("#gpudiag-live").text_content()
        assert '"gpudiag.live/1"' in inlined
        assert inlined.count('"power_draw_watts"') == 8


def test_the_numbers_live(watched: WatchedPage, service: LiveService) -> None:
    first = watched.page.locator("table.gpus tbody tr").first
    before = first.inner_text()
    service.change_machine("h100x8")
    watched.page.wait_for_function(
        "before => document.querySelector('table.gpus tbody tr').innerText !== before",
        arg=before,
        timeout=WITHIN_MS,
    )
    first.get_by_text("free").wait_for(timeout=WITHIN_MS)


@pytest.mark.sliced
@pytest.mark.parametrize(
    ("fault", "row", "text"),
    [
        ("lost:5", 5, "GPU lost"),
        ("hot:6", 6, "heat"),
        ("throttle:2", 2, "power brake"),
        ("hang:3", 3, "no answer in time"),
    ],
)
def test_a_fault_shows_within_ten_seconds_and_goes_again(
    watched: WatchedPage, service: LiveService, fault: str, row: int, text: str
) -> None:
    place = watched.page.locator(f"table.gpus tbody tr:nth-child({row + 1})", has_text=text)
    service.change_machine(f"{HEALTHY}+{fault}")
    place.wait_for(timeout=WITHIN_MS)
    service.change_machine(HEALTHY)
    place.wait_for(state="detached", timeout=2 * WITHIN_MS)
    assert watched.complaints == []


def test_a_driver_that_goes_is_said_and_comes_back(watched: WatchedPage, service: LiveService) -> None:
    service.change_machine("h100x8+no-driver")
    watched.page.locator(".banners .notice.fail").wait_for(timeout=WITHIN_MS)
    service.change_machine(HEALTHY)
    watched.page.locator(".banners .notice.fail").wait_for(state="detached", timeout=2 * WITHIN_MS)
    watched.page.locator("table.gpus tbody tr").nth(7).get_by_text("ok").wait_for(timeout=WITHIN_MS)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_preflight_is_started_followed_and_read(watched: WatchedPage) -> None:
    watched.open("runs")
    form = watched.page.locator("form.start")
    form.get_by_label("level").select_option("instant")
    form.get_by_role("button", name="Start preflight").click()
    watched.page.get_by_role("heading", name="Report").wait_for(timeout=RUN_WITHIN_MS)
    watched.sees("show what was skipped")
    assert "ended" in watched.page.locator("main").inner_text()
    assert watched.violations() == []
    assert watched.complaints == []


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.timeout(240)
def test_a_run_on_ranks_is_cancelled(watched: WatchedPage) -> None:
    watched.open("runs")
    form = watched.page.locator("form.start")
    form.locator("label", has_text="nccl-test").first.click()
    form.get_by_label("backend").select_option("gloo")
    form.get_by_role("button", name="Start nccl-test").click()
    watched.page.get_by_role("button", name="Cancel").click(timeout=RUN_WITHIN_MS)
    watched.page.locator(".run-head .status", has_text="cancelled").wait_for(timeout=RUN_WITHIN_MS)
    assert watched.complaints == []


@pytest.mark.sliced
def test_history_outlives_the_service(browsing: Browsing, built_page: Path, tmp_path: Path) -> None:
    with live_service(HEALTHY, tmp_path) as service, browsing.page(service.address) as watched:
        watched.open()
        watched.page.locator("table.gpus").wait_for()
        watched.page.wait_for_timeout(5000)
    restarted_at = time.time()
    with live_service(HEALTHY, tmp_path) as service, browsing.page(service.address) as watched:
        watched.open("history?last=600")
        watched.page.locator("figure.chart").first.wait_for()
        series = watched.page.evaluate(
            "fetch('api/v1/history?series=power_draw_watts&device=0').then(r => r.json())"
        )
        values = series["devices"][0]["series"]["power_draw_watts"]
        before = [
            value for at, value in zip(series["times"], values, strict=True) if value and at < restarted_at
        ]
        assert before
        assert min(before) > 500  # it was at work
        watched.page.get_by_label("Power: show as table").click()
        table = watched.page.locator("figure.chart tbody")
        assert "651" in table.inner_text()


@pytest.mark.sliced
def test_a_chart_draws_what_was_sampled_while_nobody_looked(
    browsing: Browsing, built_page: Path, tmp_path: Path
) -> None:
    with live_service(HEALTHY, tmp_path) as service:
        time.sleep(40)  # alone, it samples every 5 s
        with browsing.page(service.address) as watched:
            watched.open("history?last=600&metric=power_draw_watts")
            chart = watched.page.locator("figure.chart", has_text="GPU 0 power")
            chart.locator(".scale b", has_text="651").wait_for()
            drawn = chart.locator(".lines path").first.evaluate(DRAWN_WIDTH)
    assert drawn >= 12  # pixels across which a line is drawn: 40 s of 600 are some 20


DRAWN_WIDTH = """path => path.getAttribute('d').split('M').filter(Boolean).reduce((sum, piece) => {
    const across = piece.split('L').map(place => Number(place.split(' ')[0]));
    return sum + across.at(-1) - across[0];
}, 0)"""
