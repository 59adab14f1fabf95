"""Every view, on a desk and on a phone, light and dark: it shows what it is for, and nothing is wrong with
it.
"""

from collections.abc import Iterator

import pytest

from tests.browser.stub_documents import Machine
from tests.browser.stub_service import run_document, stub_service
from tests.browser.watched_page import DESKTOP, Browsing

REPORTS = {"nccl": ("nccl-test", "pass"), "killed": ("nccl-test", "fail"), "train": ("train", "fail"),
    "gate": ("preflight", "warn")}  # fmt: skip
# Each view with a text that only its finished form has.
VIEWS = {
    "": "PCIe throughput",
    "gpu/0": "Compute capability",
    "processes": "By user",
    "checks": "power.limit_lowered",
    "history": "Drag over a chart to look closer.",
    "history?metric=power_draw_watts&last=600": "GPU 7 power",
    "topology": "371 GB/s",
    "sources": "Each GPU as each source sees it",
    "runs": "Start preflight",
    "runs/nccl": "Bus bandwidth",
    "runs/killed": "rank 2 was killed by SIGKILL in stage measure, iteration 5",
    "runs/nccl?with=nccl": "Both ran the same plan",
    "runs/train": "horovod is not installed",
    "runs/gate": "show what was skipped",
    "explain/gpu.lost": "What to do",
    "nowhere": "There is no view called nowhere.",
}


@pytest.fixture(scope="module")
def address(busy_machine: Machine) -> Iterator[str]:
    with stub_service(busy_machine) as (url, state):
        for number, (kind, outcome) in REPORTS.items():
            state.runs[number] = run_document(number, kind, "succeeded", outcome)
            state.logs[number] = "starting 4 ranks\n"
        yield url


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_whole_accessible_and_quiet(browsing: Browsing, address: str, view: str) -> None:
    with browsing.page(address) as watched:
        watched.open(view)
        watched.sees(VIEWS[view])
        assert watched.flaws_in_every_look() == []
        assert watched.complaints == []
        assert watched.strangers() == []


def test_every_chart_has_a_table(browsing: Browsing, address: str) -> None:
    with browsing.page(address) as watched:
        watched.open("")
        watched.sees("Throttling and events")
        watched.page.locator("figure.chart canvas").nth(7).wait_for()
        buttons = watched.page.get_by_role("button", name="show as table")
        assert buttons.count() == 9
        for number in range(buttons.count()):
            buttons.nth(number).click()
        assert watched.page.locator("figure.chart table").count() == 9
        assert watched.page.locator("figure.chart canvas").count() == 0
        assert watched.violations() == []


def test_the_table_of_a_chart_holds_its_numbers(browsing: Browsing, address: str) -> None:
    with browsing.page(address) as watched:
        watched.open("")
        watched.page.get_by_role("button", name="Memory used: show as table").click()
        row = watched.page.locator("figure.chart tbody tr").first
        assert "63.3" in row.inner_text()


def test_eight_gpus_fit_on_one_screen(browsing: Browsing, address: str) -> None:
    with browsing.page(address, DESKTOP) as watched:
        watched.open("")
        last = watched.page.locator("table.gpus tbody tr").nth(7)
        box = last.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= DESKTOP[1]


def test_a_colour_scheme_that_was_chosen_is_kept(browsing: Browsing, address: str) -> None:
    with browsing.page(address, colours="light") as watched:
        watched.open("")
        watched.page.get_by_label("Colours").select_option("dark")
        watched.page.reload()
        assert watched.page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert watched.page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
