"""Every view, on a desk and on a phone, light and dark: it shows what it is for, and nothing is wrong with
it.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpudiag.model.evidence import Evidence
from tests.browser.stub_documents import Machine, read_machine
from tests.browser.stub_service import run_document, stub_service
from tests.browser.watched_page import DESKTOP, PHONE, Browsing

REPORTS = {
    "nccl": ("nccl-test", "pass"),
    "killed": ("nccl-test", "fail"),
    "train": ("train", "fail"),
    "gate": ("preflight", "warn"),
    "job": ("run", "fail"),
}
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
    "runs/job": "Where each rank was last",
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


@pytest.mark.sliced
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_whole_accessible_and_quiet(browsing: Browsing, address: str, view: str) -> None:
    with browsing.page(address) as watched:
        watched.open(view)
        watched.sees(VIEWS[view])
        assert watched.flaws_in_every_look() == []
        assert watched.complaints == []
        assert watched.strangers() == []


@pytest.fixture(scope="module")
def in_trouble() -> Iterator[str]:
    """A machine whose findings have evidence of each kind: times, degrees, sizes, words of a library."""
    machine = read_machine("h100x8+lost:5+hot:6+ecc:2+idle-holder:3")
    first, *others = machine.findings
    logged = Evidence("last_at", "2026-11-20T12:03:04+00:00", source="kernel log")
    findings = (replace(first, evidence=(*first.evidence, logged)), *others)
    with stub_service(replace(machine, findings=findings)) as (url, state):
        for number, (kind, outcome) in REPORTS.items():
            state.runs[number] = run_document(number, kind, "succeeded", outcome)
        yield url


def test_evidence_is_written_as_people_read_it(browsing: Browsing, in_trouble: str) -> None:
    with browsing.page(in_trouble) as watched:
        text = ""
        for view in ("", "checks", "gpu/2", "gpu/6", "runs/gate"):
            watched.open(view)
            watched.sees("What to do")
            text += watched.page.locator("main").inner_text()
        assert re.findall(r"\d{4}-\d\d-\d\dT\S*", text) == []
        assert re.findall(r"\d+ C\b", text) == []
        assert re.findall(r"(?:celsius|watts|bytes|seconds) \d\S*", text) == []
        assert "°C" in text
        assert re.search(r"last at 2026-11-20 \d\d:03:04 kernel log", text)


def test_no_words_stand_beside_a_phones_screen(browsing: Browsing, in_trouble: str) -> None:
    with browsing.page(in_trouble, PHONE) as watched:
        for view in ("sources", "checks", "processes", "runs", "runs/job", "runs/gate", "topology"):
            watched.open(view)
            watched.page.locator("main table").first.wait_for()
            beside = watched.page.evaluate(
                """() => [...document.querySelectorAll('main td.wide, main caption:not(.unseen) span')]
                .filter(one => one.getBoundingClientRect().right > innerWidth).map(one => one.textContent)"""
            )
            assert beside == [], view
        watched.open("sources")
        cells = watched.page.get_by_role("region", name="Disagreements").get_by_role("cell")
        cells.first.wait_for()
        names = cells.evaluate_all("all => all.map(one => one.dataset.label)")
        assert (names[0], names[-1]) == ("GPU", "Why")


def test_what_only_one_source_shows_is_not_called_agreement(browsing: Browsing) -> None:
    hung = read_machine("h100x8+hang:6")  # nvidia-smi and CUDA give no answer while a GPU hangs
    with stub_service(hung) as (url, _), browsing.page(url) as watched:
        watched.open("sources")
        watched.sees("Not compared.")
        watched.sees("Only nvml shows GPUs")


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
