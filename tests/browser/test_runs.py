"""Runs from the page: started, followed, cancelled, refused, their reports read.

All of it by keyboard too.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.stub_documents import Machine, rack_of, read_machine
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
    for word in (
        "h100-1: rank 2 was killed by SIGKILL",
        "What to do",
        "SIGKILL",
        "rank.died",
        "owner job",
    ):
        assert word in finding.inner_text()


def test_an_ended_job_of_gpudiag_run_shows_what_each_rank_did_last(
    served: tuple[WatchedPage, StubState],
) -> None:
    watched, state = served
    for name in ("night", "day"):
        command = {"command": "gpudiag run -- torchrun train.py", "reason": "rank 0 stood still"}
        state.runs[name] = run_document(name, "run", "succeeded", "fail") | command
    watched.open("runs/night")
    table = watched.page.get_by_role("region", name="Where each rank was last")
    rows = table.locator("tbody tr")
    rows.first.wait_for()
    assert "killed by SIGTERM" in rows.first.inner_text()
    assert "first to fail" in rows.first.inner_text()
    text = watched.page.locator("main").inner_text()
    for word in (
        "rank 0 stood still",
        "What to do",
        "exit status 1",
        "a step took 500 ms",
        "SIGTERM at 2026-",
    ):
        assert word in text
    assert "it did not continue" in text
    assert "gpudiag run -- torchrun train.py" in text
    assert watched.page.get_by_role("heading", name="Log").count() == 0
    assert watched.page.get_by_role("button", name="Run again").count() == 0  # the service does not start it
    assert watched.flaws_in_every_look() == []
    watched.open("runs/night?with=day")
    watched.page.get_by_role("region", name="Where each rank was last").nth(1).wait_for()
    assert "plan" not in watched.page.locator("main").inner_text()
    assert watched.complaints == []


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
    watched.page.reload()
    watched.sees("(6 h)")
    watched.open("history?from=1764190800&to=1764192600")
    watched.sees("(30 min)")


def posted(watched: WatchedPage) -> list[Any]:
    """The bodies of all that the page asks the service to do from now on."""
    asked: list[Any] = []
    watched.page.on(
        "request", lambda request: asked.append(request.post_data_json) if request.method == "POST" else None
    )
    return asked


def test_a_run_draws_its_sizes_and_shows_what_each_rank_waits_for(
    served: tuple[WatchedPage, StubState],
) -> None:
    watched, state = served
    start(watched, "nccl-test")
    watched.sees("busbw so far")
    points = watched.page.locator("figure.curve circle")
    points.nth(1).wait_for()
    assert points.first.locator("title").text_content().startswith("32 B: ")
    state.holds = True
    watched.sees("Ranks 0-1, 3 wait for rank 2")
    row = watched.page.locator("ul.ranks li.awaited")
    row.wait_for()
    assert "others wait for it" in row.inner_text()
    assert watched.page.locator("ul.ranks li.waits").count() == 3
    assert watched.flaws_in_every_look() == []
    watched.page.reload()  # what was reported before the page came is read
    watched.page.locator("ul.ranks li.awaited").wait_for()
    assert points.count() > 1
    assert watched.complaints == []


def test_a_run_is_run_again_and_its_command_copied(served: tuple[WatchedPage, StubState]) -> None:
    watched, state = served
    plan = {"op": ["all_reduce", "all_gather"], "max_bytes": 1048576, "nproc": None, "force": True}
    more = {"plan": plan, "gpus": ["GPU-1", "GPU-2"], "interpreter": "torch29"}
    state.runs["old"] = run_document("old", "nccl-test", "succeeded", "pass") | more
    watched.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    watched.open("runs/old")
    watched.page.get_by_role("button", name="Copy").click()
    watched.sees("Copied")
    assert (
        watched.page.evaluate("navigator.clipboard.readText()")
        == "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2 gpudiag nccl-test"
    )
    asked = posted(watched)
    watched.page.get_by_role("button", name="Run again").click()
    watched.page.get_by_role("progressbar").wait_for()
    again = {**plan, "force": False}  # to disturb others is asked anew
    assert asked == [
        {"kind": "nccl-test", "plan": again, "gpus": ["GPU-1", "GPU-2"], "interpreter": "torch29"}
    ]
    watched.open("runs/old")
    watched.page.get_by_role("link", name="Change the plan first").click()
    form = watched.page.locator("form.start")
    form.get_by_label("max bytes").wait_for()
    assert form.get_by_label("max bytes").input_value() == "1048576"
    assert form.get_by_label("all_gather").is_checked()


def test_a_preset_fills_in_the_plan_by_keyboard(served: tuple[WatchedPage, StubState]) -> None:
    watched, _ = served
    asked = posted(watched)
    watched.open("runs")
    form = watched.page.locator("form.start")
    form.locator("label", has_text="nccl-test").first.click()
    form.get_by_role("button", name="quick").focus()
    watched.page.keyboard.press("Enter")
    assert form.get_by_label("max bytes").input_value() == "1048576"
    assert form.locator("button[aria-pressed=true]").all_inner_texts()[0].startswith("Quick")
    form.get_by_label("max bytes").fill("64")
    assert form.locator("button[aria-pressed=true]").count() == 0
    form.get_by_role("button", name="before a training").press("Space")
    form.get_by_role("button", name="Start nccl-test").press("Enter")
    watched.page.get_by_role("progressbar").wait_for()
    assert asked == [{"kind": "nccl-test", "plan": {"op": ["all_reduce", "all_gather"]}}]


def test_two_runs_are_chosen_and_laid_side_by_side(served: tuple[WatchedPage, StubState]) -> None:
    watched, state = served
    for number, kind in (("a", "nccl-test"), ("b", "nccl-test"), ("c", "preflight"), ("d", "preflight")):
        state.runs[number] = run_document(number, kind, "succeeded", "pass") | {
            "plan": {"max_bytes": len(state.runs)}
        }
    watched.open("runs")
    boxes = watched.page.get_by_role("checkbox", name="Choose the")
    boxes.first.wait_for()
    for place in (0, 3, 2):  # newest first: d, a, b; the third takes the place of the first
        boxes.nth(place).press("Space")
    assert [box.is_checked() for box in boxes.all()] == [False, False, True, True]
    watched.page.get_by_role("link", name="Show both side by side").press("Enter")
    watched.page.wait_for_url("**#/runs/b?with=a")
    watched.sees("busbw at each size")
    assert "max bytes" in watched.page.get_by_role("table", name="What the plans").inner_text()
    assert watched.flaws_in_every_look() == []
    watched.open("runs/d?with=c")
    watched.sees("570.86.10")  # gpudiag compare's own judgement
    assert "another version" in watched.page.locator("main").inner_text()
    watched.open("runs/d?with=a")
    watched.sees("A nccl-test and a preflight measure different things.")
    assert watched.complaints == []


def test_slow_ranks_are_shown_over_time_and_as_a_table(served: tuple[WatchedPage, StubState]) -> None:
    watched, state = served
    state.runs["slow"] = run_document("slow", "nccl-test", "succeeded", "warn")
    watched.open("runs/slow")
    watched.sees("Rank 2 came late most")
    lane = watched.page.locator(".late-ranks .lane", has_text="rank 2").locator(".track")
    assert lane.evaluate("track => getComputedStyle(track).backgroundImage").count("rgb") > 4
    lane.hover(position={"x": 2, "y": 4})
    watched.page.locator(".late-ranks .at", has_text="rank 2 at 2.5 s").wait_for()
    watched.page.get_by_label("Slow ranks: show as table").press("Enter")
    first = watched.page.locator(".late-ranks tbody tr").first.inner_text().split()
    assert (first[0], first[2:4]) == ("2", ["67.0", "ms"])
    assert watched.violations() == []


def test_ranks_and_gpus_of_a_rack_fit(browsing: Browsing, busy_machine: Machine) -> None:
    rack = rack_of(busy_machine, 9)
    with stub_service(rack) as (address, state), browsing.page(address, (2560, 1300)) as watched:
        state.ranks, state.holds = 72, True
        run = state.start("nccl-test")
        watched.open(f"runs/{run['id']}")
        watched.sees("Ranks 0-1, 3-71 wait for rank 2")
        rows = watched.page.locator("ul.ranks li")
        assert rows.count() == 72
        last = rows.nth(71).bounding_box()
        assert last is not None
        assert last["y"] + last["height"] < 1300
        watched.open("topology")
        watched.page.locator(".matrix.dense tbody tr").nth(71).wait_for()
        watched.open("processes")
        watched.page.locator(".gpu-shares figure").nth(40).wait_for()
        for width in (390, 1000, 2560):
            watched.page.set_viewport_size({"width": width, "height": 900})
            assert not watched.is_wider_than_the_screen(), width
        assert watched.complaints == []


def test_mig_instances_are_rows_of_the_topology(browsing: Browsing) -> None:
    with stub_service(read_machine("h100-mig")) as (address, _), browsing.page(address) as watched:
        watched.open("topology")
        table = watched.page.get_by_role("table", name="MIG instances")
        table.wait_for()
        assert "3g.40gb" in table.inner_text()
        assert watched.violations() == []
