"""The page of a hub, over machines that are well, sick, silent or old: what it shows, search, order, keys,
axe.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.api.serving import Served, serving
from tests.browser.test_pictures import take
from tests.browser.watched_page import DESKTOP, PHONE, Browsing, WatchedPage
from tests.fake_machines import FAILED, FakeMachine, finding_document, live_document, machines_on_sockets

HERE = SimpleNamespace(environment=dict(os.environ))


def sick_rows() -> list[dict]:
    rows = live_document("gpu2")["devices"]
    rows[5] |= {
        "health": "fail",
        "utilization_percent": None,
        "processes": [{"user": "bob"}],
        "slurm_jobs": [],
    }
    return rows


def make_machines() -> list[FakeMachine]:
    return [
        FakeMachine("gpu1", changes={"devices": live_document("gpu1", 4)["devices"]}),
        FakeMachine("gpu2", changes=FAILED | {"devices": sick_rows()}),
        FakeMachine("gpu3", kind="closed"),
        FakeMachine("gpu4", kind="old"),
        FakeMachine("gpu10", clock_seconds=7260),
    ]


@pytest.fixture(scope="module")
def fakes() -> Iterator[list[FakeMachine]]:
    with machines_on_sockets(make_machines()) as known:
        yield known


@pytest.fixture(scope="module")
def hub(
    built_page: Path, fakes: list[FakeMachine], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serving(HERE, tmp_path_factory.mktemp("hub"), "--hub", list_of(fakes, tmp_path_factory)) as service:
        service.wait(lambda: service.get("/api/v1/machines").status_code == 200)
        service.wait(
            lambda: all(one["state"] != "asked" for one in service.get("/api/v1/machines").json()["machines"])
        )
        yield service


def list_of(fakes: list[FakeMachine], folders: pytest.TempPathFactory) -> str:
    """A file that names them as their hosts."""
    listed = folders.mktemp("list") / "machines"
    listed.write_text("".join(f"{fake.address} name={fake.host}\n" for fake in fakes))
    return f"@{listed}"


def names(watched: WatchedPage) -> list[str]:
    return watched.page.locator(".machines h3 a").all_inner_texts()


def wait_for_names(watched: WatchedPage, wanted: list[str]) -> None:
    watched.page.wait_for_function(
        "wanted => JSON.stringify([...document.querySelectorAll('.machines h3 a')].map(a => a.textContent)) === JSON.stringify(wanted)",
        arg=wanted,
    )


def card(watched: WatchedPage, name: str):
    return watched.page.locator(".machine", has=watched.page.get_by_role("link", name=name, exact=True))


def test_machines_stand_worst_first_with_what_is_wrong_and_since_when(
    browsing: Browsing, hub: Served, fakes: list[FakeMachine]
) -> None:
    with browsing.page(f"{hub.url}/") as watched:
        watched.open()
        wait_for_names(watched, ["gpu2", "gpu3", "gpu1", "gpu4", "gpu10"])
        assert "1 FAIL" in watched.page.get_by_label("Verdicts").inner_text()
        sick = card(watched, "gpu2").inner_text()
        assert "GPU 5 has fallen off the bus" in sick
        assert "nvidia-smi -r -i 5" in sick
        assert "and 1 more finding on its page" in sick
        assert card(watched, "gpu2").locator(".block.fail").get_attribute("title").startswith("GPU 5: fail")
        silent = card(watched, "gpu3").inner_text()
        assert "UNKNOWN" in silent
        assert re.search(
            r"No report yet, for \d+ (s|min): the connection ended before the answer did", silent
        )
        assert "older than the hub's" in card(watched, "gpu4").inner_text()
        assert "its clock is 2 h ahead of the hub's" in card(watched, "gpu10").inner_text()
        assert (
            card(watched, "gpu1").get_by_role("link").get_attribute("href") == f"http://{fakes[0].address}/"
        )
        assert card(watched, "gpu1").get_by_role("link").get_attribute("rel") == "noopener noreferrer"
        assert watched.strangers() == []
        assert watched.complaints == []


def test_search_finds_host_user_job_and_serial_number_and_the_address_keeps_it(
    browsing: Browsing, hub: Served, fakes: list[FakeMachine]
) -> None:
    serial = f"1650003{fakes[0].port}"
    hub.wait(lambda: serial in hub.get("/api/v1/machines").text)
    with browsing.page(f"{hub.url}/") as watched:
        watched.open()
        watched.page.locator(".machine").first.wait_for()
        for words, wanted in {
            "gpu10": ["gpu10"],
            "BOB": ["gpu2"],
            "slurm 4711": ["gpu2", "gpu1", "gpu10"],
            serial: ["gpu1"],
            "GPU-gpu2-3": ["gpu2"],
            "ann healthy": ["gpu2", "gpu1", "gpu4", "gpu10"],
            "gpu.lost": ["gpu2"],
        }.items():
            watched.page.get_by_role("searchbox").fill(words)
            wait_for_names(watched, wanted)
        watched.page.get_by_role("searchbox").fill(serial)
        watched.sees(f"GPU 3: serial number {serial}")
        watched.page.wait_for_function("serial => location.hash === `#/?q=${serial}`", arg=serial)
        watched.page.reload()
        wait_for_names(watched, ["gpu1"])
        watched.page.get_by_role("searchbox").fill("nobody")
        watched.sees("No machine fits “nobody”.")
        watched.page.get_by_role("button", name="Show all").click()
        assert watched.page.locator(".machine").count() == 5
        watched.page.get_by_role("button", name="FAIL 1").click()
        wait_for_names(watched, ["gpu2"])
        watched.page.get_by_role("button", name="All 5").click()
        watched.page.get_by_label("Order").select_option("name")
        wait_for_names(watched, ["gpu1", "gpu2", "gpu3", "gpu4", "gpu10"])
        watched.page.get_by_label("Order").select_option("memory")
        wait_for_names(watched, ["gpu2", "gpu4", "gpu10", "gpu1", "gpu3"])
        assert watched.complaints == []


def test_the_keyboard_alone_is_enough(browsing: Browsing, hub: Served) -> None:
    focused = "document.activeElement.textContent"
    with browsing.page(f"{hub.url}/") as watched:
        watched.open()
        watched.page.locator(".machine").first.wait_for()
        watched.page.keyboard.press("/")
        watched.page.keyboard.type("gpu1")
        wait_for_names(watched, ["gpu1", "gpu10"])
        watched.page.keyboard.press("ArrowDown")
        assert watched.page.evaluate(focused) == "gpu1"
        watched.page.keyboard.press("ArrowRight")
        assert watched.page.evaluate(focused) == "gpu10"
        watched.page.keyboard.press("/")
        watched.page.keyboard.press("Escape")
        wait_for_names(watched, ["gpu2", "gpu3", "gpu1", "gpu4", "gpu10"])


def test_axe_finds_nothing_on_a_desk_and_a_phone_in_light_and_dark(browsing: Browsing, hub: Served) -> None:
    for size in (DESKTOP, PHONE):
        with browsing.page(f"{hub.url}/", size) as watched:
            watched.open()
            watched.page.locator(".machine").first.wait_for()
            assert watched.flaws_in_every_look() == []


def test_a_machine_that_falls_silent_and_comes_back_is_shown_and_told(
    browsing: Browsing, hub: Served, fakes: list[FakeMachine]
) -> None:
    with browsing.page(f"{hub.url}/") as watched:
        watched.open()
        card(watched, "gpu1").get_by_text("PASS").wait_for()
        fakes[0].kind = "closed"
        try:
            card(watched, "gpu1").get_by_text("No report since").wait_for(timeout=60_000)
            assert "Then it was PASS: 8 healthy" in card(watched, "gpu1").inner_text()
            watched.page.locator(
                ".events", has_text="no report: the connection ended before the answer did"
            ).wait_for()
        finally:
            fakes[0].kind = "good"
        card(watched, "gpu1").locator(".status", has_text="PASS").wait_for(timeout=60_000)


def test_a_hub_that_ends_is_shown_as_silent_and_nothing_stays_green(
    browsing: Browsing, built_page: Path, fakes: list[FakeMachine], tmp_path: Path
) -> None:
    with (
        serving(HERE, tmp_path, "--hub", fakes[0].address, ends=False) as service,
        browsing.page(f"{service.url}/") as watched,
    ):
        watched.open()
        watched.page.locator(".machine.pass").wait_for(timeout=60_000)
        service.process.kill()
        watched.sees("The hub has been silent since")
        assert "was PASS" in watched.page.locator(".machine").inner_text()


def rack() -> list[FakeMachine]:
    """Forty-eight machines as a picture of them wants: most at work, a few free, some with a story."""
    made = []
    for number in range(48):
        host = f"h100-{number:02}"
        rows = live_document(host)["devices"]
        for place, row in enumerate(rows):
            load = (number * 37 + place * 11) % 45 + 55 if number % 6 else 0
            row |= {
                "utilization_percent": load,
                "temperature_celsius": 34 + load // 3,
                "power_draw_watts": 90.0 + 6 * load,
            }
            if not load:
                row |= {"memory_used_bytes": 0, "processes": [], "slurm_jobs": []}
        made.append(FakeMachine(host, changes={"devices": rows}))
    made[16].changes |= FAILED
    made[16].changes["devices"][5] |= {"health": "fail", "utilization_percent": None}
    told = "GPU 2 is slowed down by heat: 89 °C", "Look at the fans and at the air in front of them"
    hot = finding_document("gpu.hot", "warn", *told)
    summary = {"verdict": "warn", "headline": "8 healthy, 1 warning"}
    made[29].changes |= summary | {"finding_count": 1, "findings": [hot]}
    made[29].changes["devices"][2] |= {"health": "warn", "temperature_celsius": 89}
    made[7].kind = "hang"
    made[40].kind, made[41].clock_seconds = "old", 3600.0
    return made


@pytest.mark.slow
@pytest.mark.sliced
def test_pictures_of_a_hub(
    browsing: Browsing, built_page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    looks = {"light": ((1600, 1000), "light"), "dark": ((1600, 1000), "dark"), "phone-dark": (PHONE, "dark")}
    with (
        machines_on_sockets(rack()) as fakes,
        serving(HERE, tmp_path, "--hub", list_of(fakes, tmp_path_factory)) as service,
    ):
        service.wait(lambda: (service.get("/api/v1/machines").json().get("counts") or {}).get("silent"))
        for look, (size, colours) in looks.items():
            with browsing.page(f"{service.url}/", size, colours) as watched:
                watched.open()
                watched.page.locator(".machine.fail").wait_for()
                take(watched, f"hub-{look}", tmp_path, size)


def test_what_a_machine_says_is_text_and_never_markup(
    browsing: Browsing, built_page: Path, tmp_path: Path
) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    changes = FAILED | {
        "host": evil,
        "headline": evil,
        "findings": [FAILED["findings"][0] | {"message": evil, "remedy": evil}],
    }
    with (
        machines_on_sockets([FakeMachine("gpu1", changes=changes)]) as (fake,),
        serving(HERE, tmp_path, "--hub", fake.address) as service,
    ):
        service.wait(lambda: "onerror" in json.dumps(service.get("/api/v1/machines").json()))
        with browsing.page(f"{service.url}/") as watched:
            watched.open()
            watched.page.locator(".machine.fail").wait_for()
            assert watched.page.locator(".machine img").count() == 0
            assert watched.complaints == []
