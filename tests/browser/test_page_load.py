"""What the page costs and promises before anyone clicks: its weight, its requests, its first numbers, its
policy.
"""

import gzip
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import hatch_build
from tests.browser.stub_documents import Machine
from tests.browser.stub_service import POLICY, stub_service
from tests.browser.watched_page import Browsing, watch

ROOT = Path(__file__).parents[2]
BUDGET_BYTES = 38_000  # gzipped, all that the first screen loads
MORE_BUDGET_BYTES = 24_000  # gzipped, each of the files that other views load once
WHOLE_BUDGET_BYTES = 80_000  # gzipped, a machine's page and a hub's together
HUB_BUDGET_BYTES = 25_000  # gzipped, all that the page of a hub loads
PAGE_REQUESTS = 3  # the document, one script, one style sheet


def gzipped(path: Path) -> int:
    return len(gzip.compress(path.read_bytes(), 9))


def first_files(static: Path, name: str = "index.html") -> list[Path]:
    index = static / name
    names = re.findall(r'(?:src|href)="(?:\./)?(assets/[^"]+)"', index.read_text())
    return [index, *(static / name for name in names)]


def test_the_first_screen_is_three_files_within_its_budget(built_page: Path) -> None:
    files = first_files(built_page)
    assert len(files) == PAGE_REQUESTS
    assert sum(map(gzipped, files)) <= BUDGET_BYTES


def test_the_other_views_are_few_more_files_within_their_budgets(built_page: Path) -> None:
    others = {*first_files(built_page), *first_files(built_page, "hub.html")}
    more = [path for path in (built_page / "assets").iterdir() if path not in others]
    assert len(more) == 2  # runs have one of their own
    assert max(map(gzipped, more)) <= MORE_BUDGET_BYTES


def test_the_whole_page_is_within_its_budget(built_page: Path) -> None:
    files = [path for path in built_page.rglob("*") if path.suffix in (".html", ".css", ".js")]
    assert sum(map(gzipped, files)) <= WHOLE_BUDGET_BYTES


def test_the_page_of_a_hub_is_three_files_within_its_budget(built_page: Path) -> None:
    files = first_files(built_page, "hub.html")
    assert len(files) == PAGE_REQUESTS
    assert sum(map(gzipped, files)) <= HUB_BUDGET_BYTES


def test_the_page_names_no_other_host(built_page: Path) -> None:
    allowed = {"http://www.w3.org"}  # the names of SVG and of HTML, which nobody asks for
    for path in built_page.rglob("*"):
        if path.suffix in (".html", ".js", ".css"):
            assert set(re.findall(r"https?://[a-zA-Z0-9.-]+", path.read_text())) <= allowed, path.name


def test_the_sources_are_of_the_right_types(node_modules: Path) -> None:
    environment = dict(os.environ)
    command = [*hatch_build.find_npm(environment), "run", "check", "--silent"]
    done = subprocess.run(
        command, cwd=node_modules.parent, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout


def test_the_lock_file_names_no_registry() -> None:
    packages = json.loads((ROOT / hatch_build.SOURCE / "package-lock.json").read_text())["packages"]
    assert len(packages) > 3
    assert [name for name, package in packages.items() if "resolved" in package] == []


def test_the_licences_of_what_is_bundled_are_beside_it(built_page: Path) -> None:
    text = (built_page / "licenses.md").read_text()
    assert "preact" in text
    assert "MIT" in text


def test_the_page_loads_three_files_and_then_only_data(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, _), browsing.page(address) as watched:
        watched.open()
        watched.sees("Throttling and events")
        files = [url for url in watched.requests if "/api/" not in url and not url.startswith("data:")]
        assert len(files) == PAGE_REQUESTS
        assert watched.complaints == []


def test_the_first_numbers_need_no_second_request(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, _), browsing.page(address) as watched:
        watched.page.route("**/api/**", lambda route: route.abort())
        watched.open()
        row = watched.page.locator("table.gpus tbody tr").first
        row.wait_for()
        assert "63.3" in row.inner_text()
        assert watched.page.locator("table.gpus tbody tr").count() == 8


def test_it_works_under_a_path_prefix(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine, prefix="/ops/gpus") as (address, _), browsing.page(address) as watched:
        for view, text in (("", "Throttling and events"), ("sources", "Each GPU as each source sees it")):
            watched.open(view)
            watched.sees(text)
        assert all("/ops/gpus/" in url for url in watched.requests if not url.startswith("data:"))
        assert watched.complaints == []


def test_the_policy_of_the_stub_would_stop_what_it_forbids(browsing: Browsing, busy_machine: Machine) -> None:
    assert "script-src 'self'" in POLICY
    with stub_service(busy_machine) as (address, _), browsing.page(address) as watched:
        watched.open()
        watched.page.evaluate(
            "document.head.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
        )
        assert watched.page.evaluate("window.ran") is None
        assert any("Content Security Policy" in complaint for complaint in watched.complaints)


def test_two_tabs_share_one_stream(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as first:
        first.open()
        first.page.locator(".connection.live").wait_for()
        second = watch(first.page.context, address)
        second.open()
        second.page.locator(".connection.live").wait_for()
        before = second.page.locator(".connection").inner_text()
        second.page.wait_for_function(
            "before => document.querySelector('.connection').innerText !== before", arg=before
        )
        assert sum(path.endswith("/stream") for path in state.requests) == 1
        first.page.close()  # its stream goes with it: the other tab opens one
        for _ in range(100):
            if sum(path.endswith("/stream") for path in state.requests) > 1:
                break
            second.page.wait_for_timeout(100)
        assert sum(path.endswith("/stream") for path in state.requests) == 2


@pytest.mark.parametrize("blocked", [True, False])
def test_polling_takes_over_where_streams_do_not_come_through(
    browsing: Browsing, busy_machine: Machine, blocked: bool
) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        if blocked:
            watched.page.route("**/api/v1/stream", lambda route: route.fulfill(status=502, body=""))
        watched.open()
        watched.page.locator(".connection.polling" if blocked else ".connection.live").wait_for()
        assert any("/poll" in path for path in state.requests) is blocked
