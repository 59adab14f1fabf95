"""The first screen by eye and hand: what comes first, every width, many GPUs, keys, order and search."""

from dataclasses import replace
from typing import Any

import pytest

from tests.browser.stub_documents import Machine, read_machine
from tests.browser.stub_service import stub_service
from tests.browser.watched_page import NEXT_FRAME, Browsing, WatchedPage

IPHONE = (390, 844)
WIDE = (2560, 1440)
ROWS = "table.gpus tbody tr"
NAMES = f"{ROWS} th a"


def top(part: Any) -> float:
    box = part.bounding_box()
    assert box is not None
    return float(box["y"])


@pytest.fixture(scope="module")
def seventy_two(busy_machine: Machine) -> Machine:
    """The GPUs of a rack under one system."""
    some = busy_machine.snapshot.devices
    gpus = []
    for place in range(72):
        device = some[place % len(some)]
        identity = replace(
            device.id, uuid=f"GPU-{place:08}", nvml_index=place, bus_id=f"00000000:{place:02x}:00.0"
        )
        gpus.append(replace(device, id=identity))
    return replace(busy_machine, snapshot=replace(busy_machine.snapshot, devices=tuple(gpus)))


def test_on_a_phone_what_to_do_comes_first(browsing: Browsing, sick_machine: Machine) -> None:
    with stub_service(sick_machine) as (address, _), browsing.page(address, IPHONE) as watched:
        watched.open()
        remedies = watched.page.locator(".finding.fail .remedy")
        remedies.nth(1).wait_for()
        assert top(remedies.nth(1)) < IPHONE[1]  # on the first screen
        assert top(remedies.nth(1)) < top(watched.page.locator(".strip"))
        assert top(watched.page.locator(".strip")) < top(watched.page.locator("table.gpus"))
        cell = watched.page.locator("td.load").first
        assert not cell.locator(".spark").is_visible()  # it would lie over the label
        assert watched.flaws_in_every_look() == []


def test_the_strip_has_the_machine_at_a_glance(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, _), browsing.page(address) as watched:
        watched.open()
        watched.page.locator(".strip").wait_for()
        text = " ".join(watched.page.locator(".strip").inner_text().split())
        for part in (
            *("GPU load", "% ", "/ 637 GiB", "/ 5.32 kW", "ann 4, bob 1", "3 free", "71.5 CPU 37 %"),
            *("/ 2015 GiB", str(busy_machine.snapshot.driver_version), "Up for 12 d"),
        ):
            assert part in text
        assert "(3 h)" in watched.page.locator(".verdict").inner_text()  # since when


def test_every_width_is_used_and_nothing_is_cut(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, _), browsing.page(address) as watched:
        watched.open()
        watched.sees("PCIe throughput")
        table = watched.page.locator("table.gpus")
        for width in (1000, 1440, 2560):
            watched.page.set_viewport_size({"width": width, "height": 900})
            watched.page.evaluate(NEXT_FRAME)
            assert not watched.is_wider_than_the_screen()
            assert table.evaluate("table => table.scrollWidth <= table.clientWidth + 1"), width
            assert watched.page.locator("main").evaluate("main => main.clientWidth") == width
            is_beside = top(watched.page.locator(".recently")) < top(table)
            assert is_beside is (width == WIDE[0])


def test_seventy_two_gpus_are_in_one_view(browsing: Browsing, seventy_two: Machine) -> None:
    with stub_service(seventy_two) as (address, _), browsing.page(address, (1440, 900)) as watched:
        watched.open()
        tiles = watched.page.locator(".map .tile")
        tiles.nth(71).wait_for()
        last = tiles.nth(71).bounding_box()
        assert last is not None
        assert last["y"] + last["height"] <= 900
        assert watched.flaws_in_every_look() == []
        watched.page.get_by_role("button", name="Rows").click()
        watched.page.locator(ROWS).nth(71).wait_for()
        watched.page.get_by_label("Find GPUs").fill("bob")
        watched.page.get_by_text("9 of 72 GPUs").wait_for()
        assert watched.page.locator(ROWS).count() == 9
        assert watched.complaints == []


def test_mig_instances_are_rows(browsing: Browsing) -> None:
    machine = read_machine("h100-mig")
    with stub_service(machine) as (address, _), browsing.page(address) as watched:
        watched.open()
        instances = watched.page.locator(f"{ROWS}.instance")
        instances.nth(3).wait_for()
        text = instances.first.inner_text()
        assert "3g.40gb" in text
        assert "MIG-" in text
        assert watched.flaws_in_every_look() == []


def test_a_finding_that_gpus_share_is_shown_once(browsing: Browsing) -> None:
    machine = read_machine("+".join(["h100x8", *(f"power-cap:{gpu}" for gpu in range(8))]))
    assert sum(one.code == "power.limit_lowered" for one in machine.findings) == 8
    with stub_service(machine) as (address, _), browsing.page(address) as watched:
        for view in ("", "checks"):
            watched.open(view)
            shared = watched.page.locator(".finding", has_text="power.limit_lowered")
            shared.first.wait_for()
            assert shared.count() == 1
            assert "GPUs 0-7" in shared.inner_text()
            assert "nvidia-smi -i 0,1,2,3,4,5,6,7" in shared.inner_text()


def test_columns_sort_and_the_address_keeps_the_order(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, state), browsing.page(address) as watched:
        heat = {gpu: 30 + 7 * gpu % 8 for gpu in range(8)}
        devices = state.live()["devices"]
        for device in devices:
            device["temperature_celsius"] = heat[device["nvml_index"]]
        devices[2] |= {"temperature_celsius": None, "missing": {"temperature_celsius": "not_supported"}}
        state.told = {"devices": devices}
        watched.open()
        watched.page.locator(".connection.live").wait_for()
        warm = sorted((gpu for gpu in heat if gpu != 2), key=lambda gpu: -heat[gpu])
        button = watched.page.locator("th button.sort", has_text="Temp")
        for direction, expected in (("descending", warm), ("ascending", warm[::-1])):
            button.click()
            watched.page.locator(f"th[aria-sort={direction}]").wait_for()
            named = [f"GPU {gpu}" for gpu in (*expected, 2)]  # what has no reading is last both ways
            assert watched.page.locator(NAMES).all_inner_texts() == named
        watched.page.reload()
        watched.page.locator("th[aria-sort=ascending]").wait_for()
        button.click()  # and back to the driver's order
        assert watched.page.locator(NAMES).all_inner_texts() == [f"GPU {gpu}" for gpu in range(8)]
        assert watched.page.locator("th[aria-sort]").count() == 0


def shown(watched: WatchedPage) -> list[str]:
    texts: list[str] = watched.page.locator(NAMES).all_inner_texts()
    return texts


def test_keys_lead_everywhere(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, _), browsing.page(address) as watched:
        page = watched.page
        watched.open()
        page.locator(ROWS).first.wait_for()
        for key, view in (("3", "checks"), ("4", "history"), ("7", "runs"), ("2", "processes"), ("1", "")):
            page.keyboard.press(key)
            page.wait_for_function("view => location.hash === `#/${view}`", arg=view)
        page.keyboard.press("4")
        page.get_by_role("heading", name="History").wait_for()
        page.keyboard.press("/")  # nothing to search there: the GPUs
        page.locator("input[aria-label='Find GPUs']:focus").wait_for()
        page.keyboard.type("bob 3")  # a digit in a field is a digit
        page.get_by_text("1 of 8 GPUs").wait_for()
        assert shown(watched) == ["GPU 3"]
        assert "find=bob" in page.url
        page.keyboard.press("Escape")
        page.locator(ROWS).nth(7).wait_for()
        page.keyboard.press("?")
        page.locator("dialog[open]").wait_for()
        assert watched.violations() == []
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")
        page.get_by_label("Find GPUs").fill("nobody has this")
        page.get_by_role("button", name="Show all").click()
        page.locator(ROWS).nth(7).wait_for()
        page.keyboard.press("3")
        page.get_by_label("Find findings").fill("power lowered")
        page.locator(".finding").wait_for()
        page.get_by_label("Find findings").fill("no such")
        page.get_by_text("No finding fits").wait_for()
        assert watched.complaints == []


def test_a_row_opens_its_gpu(browsing: Browsing, busy_machine: Machine) -> None:
    with stub_service(busy_machine) as (address, _), browsing.page(address) as watched:
        watched.open()
        watched.page.locator(ROWS).nth(4).locator("td").nth(4).click()
        watched.page.get_by_role("heading", name="GPU 4").wait_for()
