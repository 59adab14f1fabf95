"""`tools/static_demo`: a service is recorded while a story happens, and the page plays it from files, without
a server of ours.
"""

import functools
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import hatch_build
from gpudiag.simulate.loader import load_scenario
from tests.browser.live_service import LiveService, live_service
from tests.browser.watched_page import Browsing, WatchedPage
from tools.static_demo.export import SCRIPT, write_site
from tools.static_demo.record import Recording, find_changes, record_service, record_story

WELL = "h100x8+busy:0+busy:1+busy:2+busy:3+busy:6"
WORSE = f"{WELL}+hot:6+job-hangs"
WANTED = {"temperature.gpu_too_hot", "hang.loader"}
TICKS = 5  # of each chapter, at least
AT_THE_END = 9e9
PAUSE_SECONDS = 1e6


class Director:
    """Lets the machine change once it was recorded as it is, and ends the recording once that was, too."""

    def __init__(self, service: LiveService) -> None:
        self._service = service
        self._since = 0
        self.turned_at: float | None = None

    def is_whole(self, known: Recording) -> bool:
        live = known.newest["live"]
        codes = {finding["code"] for finding in live["findings"]}
        ticks = sum(line["name"] == "live" for line in known.lines)
        if self.turned_at is None:
            if live["verdict"] == "pass" and ticks >= TICKS:
                self._service.change_machine(WORSE)
                self.turned_at = known.seconds + 0.1
            return False
        if not codes >= WANTED:
            self._since = ticks
        return ticks >= self._since + TICKS


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    well = replace(load_scenario(WELL), jobs=())  # and not those of this machine
    with live_service(well, tmp_path_factory.mktemp("state"), "--watch-jobs") as service:
        director = Director(service)
        recorded = record_service(service.address, director.is_whole)
    recorded.chapters = [
        {"at": 0.0, "title": "all is well"},
        {"at": director.turned_at, "title": "hot, and a rank hangs"},
    ]
    return recorded


@pytest.fixture(scope="module")
def site(recording: Recording, node_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static-demo")
    environment = {**os.environ, "GPUDIAG_STATIC": str(folder / "page")}
    command = [*hatch_build.find_npm(environment), "run", SCRIPT, "--silent"]
    subprocess.run(command, cwd=node_modules.parent, env=environment, check=True, capture_output=True)
    write_site(folder / "page", recording.document(), folder / "site")
    return folder / "site"


@contextmanager
def any_web_server(folder: Path) -> Iterator[str]:
    """The address of a server that knows nothing of gpudiag."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/site/index.html"
        finally:
            server.shutdown()
            thread.join()


def open_at(page: WatchedPage, seconds: float, view: str = "") -> None:
    """Open the view at that moment of the recording."""
    page.page.goto("about:blank")
    page.page.goto(f"{page.address}?at={seconds}#/{view}")


def check_views(page: WatchedPage, recording: Recording) -> None:
    """What the page shows at the end is what was recorded, in every view, and it asks nobody."""
    live = recording.newest["live"]
    open_at(page, AT_THE_END)
    page.sees("A recording of gpudiag demo")
    page.sees("Simulated GPUs:")
    page.sees(live["headline"])
    page.sees("hang.loader")
    for view, text in {
        "checks": "waits for its data loader's workers",
        "processes": "train.py",
        "history": "CSV",
        "topology": "NVLink",
        "sources": "GPUtil",
        "runs": "No run",
        "gpu/6": "temperature.gpu_too_hot",
        "explain/hang.loader": "What it means",
        "explain/no.such": "This recording has no explain/no.such.",
    }.items():
        open_at(page, AT_THE_END, view)
        page.sees(text)
    assert page.complaints == []
    assert [url for url in page.requests if "/api/" in url] == []
    assert page.strangers() == []


@pytest.mark.sliced
def test_it_works_when_the_folder_is_opened_from_a_disk(
    browsing: Browsing, site: Path, recording: Recording
) -> None:
    with browsing.page((site / "index.html").as_uri()) as page:
        check_views(page, recording)
        open_at(page, AT_THE_END, "history")
        with page.page.expect_download() as download:
            page.page.get_by_role("link", name="CSV").click()
        text = Path(download.value.path()).read_text()
        assert text.splitlines()[0] == recording.newest["answer/history.csv"].splitlines()[0]
        open_at(page, AT_THE_END)
        page.sees("hang.loader")
        assert page.flaws_in_every_look() == []


@pytest.mark.sliced
def test_it_works_on_any_web_server_and_below_any_path(
    browsing: Browsing, site: Path, recording: Recording
) -> None:
    with any_web_server(site.parent) as address, browsing.page(address) as page:
        check_views(page, recording)


def test_it_plays_chapters_can_be_chosen_and_its_end_does_not_grow_old(
    browsing: Browsing, site: Path, recording: Recording, tmp_path: Path
) -> None:
    write_site(site.parent / "page", with_a_pause(recording), tmp_path)
    with browsing.page((tmp_path / "index.html").as_uri()) as page:
        strip = page.page.locator("#recorded")
        open_at(page, 0)
        page.sees(recording.lines[0]["value"]["headline"])
        strip.locator("a[aria-current]", has_text="all is well").wait_for()
        assert page.page.get_by_text("hang.loader").count() == 0
        # A chapter is played from its beginning, in the view that is open; what came in it is shown as it
        # came.
        page.page.get_by_role("link", name="Checks").click()
        strip.get_by_role("link", name="a rank hangs").click()
        page.sees("hang.loader")
        strip.locator("a[aria-current]", has_text="a rank hangs").wait_for()
        assert page.page.url.endswith("#/checks")
        page.sees("It has ended")
        before = page.page.locator("header .facts").inner_text()
        page.page.wait_for_function(
            "before => document.querySelector('header .facts').innerText !== before", arg=before
        )
        assert page.page.get_by_text("No news for").count() == 0
        assert page.complaints == []


def with_a_pause(recording: Recording) -> dict:
    """The recording with much time before its last chapter, however slow the browser is."""
    last = recording.chapters[-1]["at"]
    moved = lambda at: at + PAUSE_SECONDS if at >= last else at  # noqa: E731
    return {
        **recording.document(),
        "seconds": recording.seconds + PAUSE_SECONDS,
        "chapters": [{**one, "at": moved(one["at"])} for one in recording.chapters],
        "lines": [{**one, "at": moved(one["at"])} for one in recording.lines],
    }


def test_a_recording_is_whole_and_says_only_what_changed(recording: Recording) -> None:
    first: dict[str, dict] = {}
    for line in recording.lines:
        assert ("value" in line) == (line["name"] not in first) or "value" in line
        if "value" in line:
            first[line["name"]] = json.loads(json.dumps(line["value"]))
        for path, value in line.get("set", ()):
            place = first[line["name"]]
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
    assert first == recording.newest
    assert {"live", "findings", "event", "answer/checks", "answer/explain/hang.loader"} <= first.keys()
    assert first["live"]["simulated"] == WELL


def test_the_demo_is_recorded_with_its_chapters() -> None:
    recorded = record_story("demo", is_whole=lambda _: True)
    assert recorded.newest["live"]["simulated"] == "demo"
    assert recorded.chapters[0] == {"at": 0.0, "title": "A job trains on GPUs 0 to 3, a program on GPU 6"}


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 1.5}, [(["a"], 1.5)]),
        ({"a": 1}, {"a": True}, [(["a"], True)]),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": 0}]}, [(["a", 1, "b"], 0)]),
        ({"a": [1]}, {"a": [1, 2]}, [(["a"], [1, 2])]),
        ({"a": 1}, {"b": 1}, [([], {"b": 1})]),
        ({"a": {"b": 1}, "c": 2}, {"a": {}, "c": 3}, [(["a"], {}), (["c"], 3)]),
    ],
)
def test_changes_are_the_places_that_are_another(before: object, after: object, changes: list) -> None:
    assert find_changes(before, after) == changes
