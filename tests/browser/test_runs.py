"""Runs from the page: started, followed, cancelled, refused, their reports read; all of it by keyboard too."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.stub_documents import Machine
from tests.browser.stub_service import StubState, run_document, stub_service
from tests.browser.watched_page import Browsing, WatchedPage


@pytest.fixture
def served(browsing: Browsing, busy_machine: Machine) -> Iterator[tuple[WatchedPage, StubState]]:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        yield watched, state


def start(watched: WatchedPage, kind: str) -> None:
    watched.open("runs")
    watched.page.locator("form.start label", has_text=kind).first.click()
    watched.page.get_by_role("button", name=f"Start {kind}").click()


def test_a_run_is_started_followed_and_its_report_read(served: tuple[WatchedPage, StubState]) -> None:
    watched, state = served
    start(watched, "nccl-test")
    watched.page.get_by_role("progressbar").wait_for()
    watched.page.get_by_label("Log of the run").get_by_text("all_reduce").wait_for()
    watched.sees("Bus bandwidth")
    text = watched.page.locator("main").inner_text()
    assert "ended" in text
    assert "16.0 MiB" in text or "32 MiB" in text
    assert watched.page.locator("p.formats a").all_inner_texts() == ["text", "json"]
    (run,) = state.runs.values()
    assert run["state"] == "succeeded"
    assert watched.complaints == []


def test_a_plan_is_sent_as_it_was_filled_in(served: tuple[WatchedPage, StubState]) -> None:
    watched, _ = served
    asked: list[Any] = []
    watched.page.on(
        "request", lambda request: asked.append(request.post_data_json) if request.method == "POST" else None
    )
    watched.open("runs")
    form = watched.page.locator("form.start")
    form.locator("label", has_text="nccl-test").first.click()
    form.get_by_label("max bytes").fill("1048576")
    form.get_by_label("all_gather").check()
    form.get_by_label("GPU 5").check()
    form.get_by_label("unaligned").check()
    form.get_by_role("button", name="Start nccl-test").click()
    watched.page.get_by_role("heading", name="Log").wait_for()
    (body,) = asked
    assert body["plan"] == {"op": ["all_reduce", "all_gather"], "max_bytes": 1048576, "unaligned": True}
    assert len(body["gpus"]) == 1


def test_a_look_at_a_job_is_sent_without_gpus(served: tuple[WatchedPage, StubState]) -> None:
    watched, _ = served
    asked: list[Any] = []
    watched.page.on(
        "request", lambda request: asked.append(request.post_data_json) if request.method == "POST" else None
    )
    watched.open("runs")
    form = watched.page.locator("form.start")
    form.locator("label", has_text="nccl-test").first.click()
    form.get_by_label("GPU 5").check()
    form.locator("label", has_text="hang").first.click()
    assert form.get_by_label("GPU 5").count() == 0
    form.get_by_label("job of").fill("4711")
    form.get_by_role("button", name="Start hang").click()
    watched.page.wait_for_function("location.hash.includes('/')")
    assert asked == [{"kind": "hang", "plan": {"job_of": 4711}}]


def test_a_number_out_of_bounds_is_not_sent(served: tuple[WatchedPage, StubState]) -> None:
    watched, state = served
    watched.open("runs")
    form = watched.page.locator("form.start")
    form.locator("label", has_text="nccl-test").first.click()
    form.get_by_label("nproc").fill("-1")
    form.get_by_role("button", name="Start nccl-test").click()
    assert not form.get_by_label("nproc").evaluate("input => input.validity.valid")
    assert state.runs == {}


def test_a_run_is_cancelled(served: tuple[WatchedPage, StubState]) -> None:
    watched, state = served
    start(watched, "nccl-test")
    watched.page.get_by_role("button", name="Cancel").click()
    watched.sees("cancelled by the page")
    (run,) = state.runs.values()
    assert run["state"] == "cancelled"


def test_a_conflict_names_the_holder_and_offers_to_wait(served: tuple[WatchedPage, StubState]) -> None:
    watched, state = served
    state.runs["held"] = run_document("held", "preflight", "queued")
    start(watched, "bandwidth")
    watched.sees("Another run holds these GPUs.")
    assert (
        watched.page.get_by_role("link", name="The run that holds them").get_attribute("href")
        == "#/runs/held"
    )
    watched.page.get_by_role("button", name="Start when it is done").click()
    watched.page.get_by_role("heading", name="Log").wait_for()
    assert len(state.runs) == 2


def test_a_failed_run_shows_its_finding_with_evidence(served: tuple[WatchedPage, StubState]) -> None:
    watched, state = served
    state.runs["bad"] = run_document("bad", "nccl-test", "succeeded", "fail")
    watched.open("runs/bad")
    finding = watched.page.locator("article.finding")
    finding.wait_for()
    for word in ("rank 2 was killed by SIGKILL", "What to do", "SIGKILL", "rank.died", "for job to act"):
        assert word in finding.inner_text()


def test_the_curve_of_the_run_before_lies_behind_the_curve(served: tuple[WatchedPage, StubState]) -> None:
    watched, state = served
    state.runs["old"] = run_document("old", "nccl-test", "succeeded", "pass") | {
        "requested_at": "2026-11-20T01:02:03.000Z"
    }
    state.runs["new"] = run_document("new", "nccl-test", "succeeded", "pass")
    watched.open("runs/new")
    watched.page.locator("figure.curve .legend", has_text="the run of 2026-11-20").wait_for()
    watched.page.get_by_label("Bus bandwidth: show as table").click()
    header = watched.page.locator("figure.curve thead")
    assert "all_reduce float32 before" in header.inner_text()
    watched.open("runs/old")  # nothing came before it: what the store remembers is behind it
    watched.page.locator("figure.curve .legend", has_text="the median of this machine's good runs").wait_for()


def test_the_keyboard_is_enough(served: tuple[WatchedPage, StubState]) -> None:
    watched, _ = served
    watched.open()
    watched.page.locator("table.gpus").wait_for()
    watched.page.keyboard.press("Tab")
    assert watched.page.evaluate("document.activeElement.innerText") == "Skip to content"
    watched.page.keyboard.press("Enter")
    assert watched.page.evaluate("document.activeElement.id") == "main"
    watched.page.keyboard.press("Tab")
    while "GPU 0" not in watched.page.evaluate("document.activeElement.innerText"):
        watched.page.keyboard.press("Tab")
    watched.page.keyboard.press("Enter")
    watched.page.get_by_role("heading", name="GPU 0").wait_for()
    table = watched.page.get_by_label("Utilisation: show as table")
    table.focus()
    watched.page.keyboard.press("Space")
    watched.page.locator("button[aria-pressed=true]").wait_for()


def test_a_range_of_time_stands_in_the_address(served: tuple[WatchedPage, StubState]) -> None:
    watched, _ = served
    watched.open("history")
    watched.page.get_by_role("link", name="6 h").click()
    watched.page.wait_for_url("**#/history?last=21600")
    watched.sees("(6 h)")
    chart = watched.page.locator("figure.chart .u-over").first
    chart.wait_for()
    box = chart.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    watched.page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    watched.page.mouse.down()
    watched.page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
    watched.page.mouse.up()
    watched.page.wait_for_url("**from=*to=*")
    chosen = watched.page.locator("p.range", has_not_text="(6 h)")  # the address changes first
    chosen.wait_for()
    shown = chosen.inner_text()
    watched.page.reload()
    watched.page.locator("p.range", has_text=shown.split("(")[0].strip()).wait_for()
