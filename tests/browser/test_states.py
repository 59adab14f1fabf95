"""What the page says where something is wrong: what it is, how old the numbers are, what to do."""

from dataclasses import replace

import pytest

from gpudiag.service.seen_gpus import SeenGpus
from tests.browser.stub_documents import Machine, read_machine
from tests.browser.stub_service import stub_service
from tests.browser.watched_page import Browsing, WatchedPage

# Every colour that is more green than red and blue: of text, grounds, edges, the dot of the connection, and
# canvases.
GREEN_PLACES = """() => {
  const isGreen = ([r, g, b, a = 1]) => a > 0 && g > r + 24 && g > b + 24;
  const parts = colour => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const part_of_view = element.closest(".view > *");
    const gray = part_of_view && getComputedStyle(part_of_view).filter.includes("grayscale");
    for (const part of [null, "::before"]) {
      const style = getComputedStyle(element, part);
      if (part && style.content === "none") continue;
      for (const name of ["color", "backgroundColor", "borderLeftColor"]) {
        if (!gray && isGreen(parts(style[name]))) found.push(`${element.className} ${name} ${style[name]}`);
      }
    }
  }
  return found;
}"""
LOCKED = {"role": None, "actions_allowed": True, "token_required": True}
READ_ONLY = {"role": "read", "actions_allowed": False, "token_required": False}


def quiet(watched: WatchedPage) -> bool:
    return watched.complaints == [] and watched.violations() == [] and not watched.is_wider_than_the_screen()


def test_a_lost_gpu_stays_a_row_with_its_last_numbers(browsing: Browsing, sick_machine: Machine) -> None:
    with stub_service(sick_machine) as (address, _), browsing.page(address) as watched:
        watched.open()
        row = watched.page.locator("table.gpus tbody tr").nth(5)
        assert "GPU lost" in row.inner_text()
        assert "since" in row.inner_text()
        assert "Last good: 97%" in row.inner_text()
        assert "gpu lost" in row.locator(".status.fail").inner_text()
        assert quiet(watched)


def test_the_worst_finding_says_what_to_do(browsing: Browsing, sick_machine: Machine) -> None:
    with stub_service(sick_machine) as (address, _), browsing.page(address) as watched:
        watched.open()
        first = watched.page.locator("article.finding").first
        assert "gpu.lost" in first.inner_text()
        assert "What to do" in first.inner_text()
        first.get_by_role("link", name="gpu.lost").click()
        watched.sees("What it means")


def test_a_call_that_hangs_is_named_on_every_view(browsing: Browsing, hung_machine: Machine) -> None:
    with stub_service(hung_machine) as (address, _), browsing.page(address) as watched:
        for view in ("", "processes", "topology"):
            watched.open(view)
            alert = watched.page.locator(".banners .notice.fail")
            alert.wait_for()
            assert "nvmlDeviceGetTemperatureV has not come back" in alert.inner_text()
            assert "dmesg" in alert.inner_text()
        assert quiet(watched)


def test_what_hangs_is_a_call_the_driver_or_the_reader_of_the_gpus(
    browsing: Browsing, hung_machine: Machine
) -> None:
    """Seven GPUs answer while the eighth hangs: the driver is there.

    And a reader that stands still is no driver.
    """
    with stub_service(hung_machine) as (address, state), browsing.page(address) as watched:
        sampler = state.live()["sampler"]
        alert, said = watched.page.locator(".banners .notice.fail"), watched.page.get_by_role("alert")
        watched.open()
        alert.wait_for()
        assert said.inner_text() == "A call into the driver hangs."
        assert "The other GPUs' numbers are current." in alert.inner_text()
        long_ago = "2026-11-20T21:04:05.000Z"
        state.told = {"sampler": {**sampler, "last_good_at": long_ago}}
        watched.sees("The driver does not answer.")
        reason = "the sampler has not reported for 12 s"
        state.told = {"sampler": {**sampler, "last_good_at": long_ago, "wedged_call": None, "reason": reason}}
        watched.sees(reason)
        assert "driver" not in alert.inner_text()
        assert "reads the GPUs is silent" in said.inner_text()


def test_a_fault_that_is_told_now_is_red_however_old_the_numbers_are(
    browsing: Browsing, busy_machine: Machine
) -> None:
    """A driver that is gone gives no numbers: from afar its FAIL looked like a page not in use."""
    filter_of = "element => getComputedStyle(element.closest('.view > *')).filter"
    with browsing.page("") as watched:
        with stub_service(busy_machine) as (address, state):
            watched.address = address
            sampler = {**state.live()["sampler"], "last_good_at": "2026-11-20T21:04:05.000Z"}
            state.told = {"sampler": sampler, "verdict": "fail", "headline": "8 unread"}
            watched.open()
            watched.page.locator("html[data-outdated]").wait_for(state="attached")
            verdict, table = watched.page.locator(".verdict"), watched.page.locator("table.gpus")
            assert "FAIL" in verdict.inner_text()
            assert verdict.evaluate(filter_of) == "none"
            assert "grayscale" in table.evaluate(filter_of)
            assert watched.flaws_in_every_look() == []
        watched.sees("UNKNOWN")  # the service is gone: nobody knows whether that is still so
        assert "grayscale" in verdict.evaluate(filter_of)


def test_without_a_gpu_it_says_what_each_source_sees(browsing: Browsing, empty_machine: Machine) -> None:
    with stub_service(empty_machine) as (address, _), browsing.page(address) as watched:
        watched.open()
        watched.sees("No GPU to show")
        text = watched.page.locator("main").inner_text()
        for word in (
            "nvml",
            "library absent",
            "gpudiag nccl-test",
            "gpudiag simulate h100x8 -- gpudiag serve",
        ):
            assert word in text
        assert watched.page.locator("canvas").count() == 0
        assert quiet(watched)
        for view in ("processes", "topology", "sources", "history"):
            watched.open(view)
            watched.page.locator("main h1").wait_for()
            assert quiet(watched), view


def test_numbers_that_grow_old_are_called_old(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        watched.open()
        watched.page.locator(".connection.live").wait_for()
        assert watched.page.locator(".banners .notice.fail").count() == 0
        state.silent = True
        alert = watched.page.locator(".banners .notice.fail")
        alert.wait_for(timeout=15_000)
        assert "No news for" in alert.inner_text()
        # Said once, not every second.
        assert watched.page.get_by_role("alert").inner_text() == "These numbers are old."
        assert "gpudiag serve" in alert.inner_text()
        state.silent = False
        alert.wait_for(state="detached", timeout=15_000)


def test_a_service_that_went_away_is_noticed(browsing: Browsing, busy_machine: Machine) -> None:
    with browsing.page("") as watched:
        with stub_service(busy_machine) as (address, _):
            watched.address = address
            watched.open()
            watched.page.locator(".connection.live").wait_for()
        watched.page.locator(".banners .notice.fail").wait_for(timeout=20_000)
        assert "cannot be reached" in watched.page.locator(".banners .notice.fail").inner_text()
        assert "63.3" in watched.page.locator("table.gpus").inner_text()  # what was known stays


def test_nothing_is_green_once_the_service_is_gone(browsing: Browsing, busy_machine: Machine) -> None:
    with browsing.page("") as watched:
        with stub_service(busy_machine) as (address, state):
            watched.address = address
            state.told = {"verdict": "pass", "headline": "8 healthy"}
            watched.open()
            watched.page.locator(".connection.live").wait_for()
            assert watched.page.locator(".verdict .status.ok").inner_text().endswith("PASS")
            assert watched.page.locator(".status.ok").count() > 0
            assert watched.page.evaluate(GREEN_PLACES) != []
        watched.page.locator("html[data-outdated]").wait_for(state="attached", timeout=20_000)
        verdict = watched.page.locator(".verdict").inner_text()
        assert "UNKNOWN" in verdict
        assert "it was PASS: 8 healthy" in verdict
        assert watched.page.locator(".status.ok").count() == 0
        assert "was ok" in watched.page.locator("table.gpus").inner_text()
        assert watched.page.evaluate(GREEN_PLACES) == []
        watched.complaints.clear()  # the browser's, about the service that is gone
        assert quiet(watched)
        watched.page.get_by_role("link", name="Processes").click()
        assert watched.page.evaluate(GREEN_PLACES) == []


@pytest.mark.parametrize("connection", ["live", "polling"])
def test_nothing_is_green_by_the_page_s_own_clock_and_it_is_again(
    browsing: Browsing, busy_machine: Machine, connection: str
) -> None:
    """Silent once the stream has spoken, and before: the page polls then, and shows what its file holds."""
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        state.told = {"verdict": "pass"}
        state.silent = connection == "polling"
        watched.open()
        watched.page.locator(".status.ok").first.wait_for()
        watched.page.locator(f".connection.{connection}").wait_for()
        state.silent = True  # the connection stays, and its dot must not be green either
        watched.page.locator("html[data-outdated]").wait_for(state="attached", timeout=15_000)
        assert watched.page.locator(f".connection.{connection}").count() == 1
        assert watched.page.evaluate(GREEN_PLACES) == []
        state.silent = False
        watched.page.locator("html:not([data-outdated])").wait_for(state="attached", timeout=15_000)
        watched.page.locator(".status.ok").first.wait_for()


@pytest.mark.sliced
@pytest.mark.parametrize(
    ("verdict", "headline", "word"),
    [
        ("error", "the numbers are 12 s old", "UNKNOWN"),
        ("error", "NVML is not asked", "UNKNOWN"),
        ("fail", "7 healthy, 1 of 8 missing", "FAIL"),
    ],
)
def test_a_verdict_is_told_in_the_service_s_words(
    browsing: Browsing, busy_machine: Machine, verdict: str, headline: str, word: str
) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        state.told = {"verdict": verdict, "headline": headline}
        watched.open()
        watched.sees(headline)
        assert word in watched.page.locator(".verdict").inner_text()
        assert "was" not in watched.page.locator(".verdict .sentence").inner_text()
        assert quiet(watched)


@pytest.mark.parametrize(("scenario", "word"), [("h100x8+gone:3", "missing"), ("none", "unread")])
def test_a_gpu_that_was_seen_and_is_not_listed_keeps_its_row(
    browsing: Browsing, busy_machine: Machine, scenario: str, word: str
) -> None:
    """Missing where the driver answers without it; unread where no driver does."""
    seen = SeenGpus()
    seen.note(busy_machine.snapshot)
    machine = read_machine(scenario)
    rows = seen.rows_of_missing(machine.snapshot)
    here = replace(machine.snapshot, devices=(*machine.snapshot.devices, *rows))
    with stub_service(replace(machine, snapshot=here)) as (address, _), browsing.page(address) as watched:
        watched.open()
        row = watched.page.locator("table.gpus tbody tr").nth(7)  # without an index it is the last
        text = row.inner_text()
        assert word in text
        assert "since" in text
        assert "97%" in text
        if word == "missing":
            assert str(rows[0].id.bus_id).removeprefix("00000000:") in text
        assert "null" not in text
        assert row.locator(".status.ok").count() == 0
        assert quiet(watched)
        row.get_by_role("link").first.click()
        watched.page.locator("main h1").wait_for()
        assert watched.complaints == []


def test_a_gpu_with_load_and_no_process_to_see_is_in_use(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        devices = state.live()["devices"]
        for device in devices:
            device |= {"processes": [], "signs_of_use": [], "not_free_because": []}
        devices[0]["signs_of_use"] = ["63.3 GiB of memory are in use"]
        devices[1]["not_free_because"] = ["a check found a fault on it"]  # as `gpudiag list` leaves it out
        state.told = {"devices": devices}
        watched.open()
        users = watched.page.locator("table.gpus tbody td.users")
        watched.page.get_by_text("in use", exact=True).wait_for()
        assert users.all_inner_texts() == ["in use", "not free", *["free"] * 6]
        assert users.nth(1).locator("span").get_attribute("title") == "a check found a fault on it"
        watched.open("runs")
        watched.page.locator("form.start").wait_for()
        assert watched.page.locator("form.start").inner_text().count("(in use)") == 1


def test_a_token_is_asked_for_and_taken(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        state.session = dict(LOCKED)
        watched.open()
        watched.sees("A token is needed")
        assert watched.violations() == []
        assert "H100" not in watched.page.locator("main").inner_text()
        watched.page.get_by_label("Token").fill("bad")
        watched.page.get_by_role("button", name="Use it").click()
        watched.sees("That token is not one of this service's.")
        watched.page.get_by_label("Token").fill("good")
        watched.page.get_by_role("button", name="Use it").click()
        watched.page.locator("table.gpus").wait_for()


@pytest.mark.sliced
@pytest.mark.parametrize("view", ["", "runs", "gpu/0"])
def test_a_service_that_was_started_anew_and_wants_a_token_again_says_so(
    browsing: Browsing, busy_machine: Machine, view: str
) -> None:
    """It answers, so "cannot be reached" would be wrong, and a screen on a wall would say it for ever."""
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        watched.open(view)
        watched.page.locator(".connection.live").wait_for()
        state.session = dict(LOCKED)  # its sessions have ended with it, and so have its streams
        watched.page.get_by_text("A token is needed").wait_for(timeout=20_000)
        assert "cannot be reached" not in watched.page.locator("main").inner_text()
        asked = len(state.requests)
        watched.page.wait_for_timeout(2500)
        assert len(state.requests) == asked  # nothing is asked that is refused anyway
        watched.page.get_by_label("Token").fill("good")
        watched.page.get_by_role("button", name="Use it").click()
        watched.page.locator(".connection.live").wait_for()
        watched.page.locator("html:not([data-outdated])").wait_for(state="attached")


def test_a_service_that_was_started_anew_offers_only_what_this_page_may_do_there(
    browsing: Browsing, busy_machine: Machine
) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        watched.open("runs")
        watched.page.locator("form.start").wait_for()
        state.session = dict(LOCKED)
        watched.page.get_by_text("A token is needed").wait_for(timeout=20_000)
        # Another tab's token.
        state.session = {
            "role": "read",
            "actions_allowed": True,
            "token_required": True,
        }
        watched.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        watched.page.locator(".connection.live").wait_for()
        watched.page.locator("form.token").wait_for()
        assert watched.page.locator("form.start").count() == 0


def test_a_token_in_the_address_is_taken_and_removed(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        state.session = dict(LOCKED)
        watched.page.goto(f"{address}#token=good")
        watched.page.locator("table.gpus").wait_for()
        assert "good" not in watched.page.url
        assert not any("good" in url for url in watched.requests)


def test_a_service_that_only_looks_says_how_to_start_a_run(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        state.session = dict(READ_ONLY)
        watched.open("runs")
        watched.sees("This service only looks; it starts nothing.")
        assert watched.page.locator("form.start").count() == 0
        assert "--allow-actions" in watched.page.locator("main").inner_text()
        assert "in a terminal" in watched.page.locator("main").inner_text()
        assert "does not appear on this page" in watched.page.locator("main").inner_text()
        assert quiet(watched)


@pytest.mark.sliced
@pytest.mark.parametrize("view", ["processes", "checks", "history", "topology", "sources", "runs"])
def test_a_view_whose_data_fails_says_so(browsing: Browsing, busy_machine: Machine, view: str) -> None:
    with stub_service(busy_machine) as (address, _), browsing.page(address) as watched:
        problem = '{"detail": "The store is full.", "hint": "Free some space."}'
        for part in ("processes", "checks", "history", "topology", "sources", "runs"):
            watched.page.route(
                f"**/api/v1/{part}*",
                lambda route: route.fulfill(
                    status=500, body=problem, content_type="application/problem+json"
                ),
            )
        watched.open(view)
        watched.sees("The store is full.")
        assert "Free some space." in watched.page.locator("main").inner_text()
