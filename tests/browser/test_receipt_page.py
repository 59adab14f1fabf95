"""A receipt's page in a browser: on a wide screen, on a phone and on paper, from a file, with nothing beside
it.
"""

from pathlib import Path
from typing import Any

import pytest

from gpudiag.runs.receipt import write_receipt
from tests.unit.runs.receipts import a_receipt


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_receipt(tmp_path_factory.mktemp("receipt") / "node17", a_receipt())[1]


@pytest.mark.parametrize("width", [1200, 390])
def test_it_fits_the_screen_and_asks_for_nothing(chromium: Any, page_file: Path, width: int) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 900})
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (asked, errors) == ([page_file.as_uri()], [])
    # No text but in a table that scrolls by itself reaches beyond the screen.
    outside = page.evaluate(
        "width => [...document.querySelectorAll('h1, h2, h3, p, li, dd, pre, code, figure')]"
        ".filter(one => !one.closest('.wide') && one.getBoundingClientRect().right > width + 1).length",
        width,
    )
    assert outside == 0
    headings = page.eval_on_selector_all("h2", "all => all.map(one => one.textContent)")
    assert headings[:4] == ["Findings", "Parts", "Versions", "Measured and expected"]
    assert page.locator("td.fail, td.warn").count() >= 1
    assert page.locator("svg polyline").count() == 8
    page.close()


def test_it_prints_as_a_few_sheets_of_paper(chromium: Any, page_file: Path, tmp_path: Path) -> None:
    page = chromium.new_page()
    page.goto(page_file.as_uri())
    pdf = page.pdf(prefer_css_page_size=True, print_background=True)
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 10
    # On paper nothing scrolls: no table is wider than the sheet, 186 mm between its margins at 96 dots an
    # inch.
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 703, "height": 1000})
    wide = page.eval_on_selector_all("table", "all => all.filter(one => one.scrollWidth > 704).length")
    assert wide == 0
    page.close()
