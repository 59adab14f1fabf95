"""What the browser tests share: a built page, a browser, machines, and a page that is watched while it is
open.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

import hatch_build
from tests.browser.stub_documents import Machine, read_machine
from tests.browser.watched_page import AXE, Browsing

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / hatch_build.SOURCE
STATIC = ROOT / hatch_build.STATIC
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
BUSY = "h100x8+busy:0+busy:1+busy:2+busy:4+power-cap:1+idle-holder:3"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


def absent(what: str) -> NoReturn:
    """Skip, loudly; under CI=true, where everything must be there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """While it lasts, no other worker of this test run builds or installs in the checkout."""
    lock = ROOT / ".pytest_cache" / "dashboard.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another worker holds it for as long as npm takes, which is bounded
        yield


@pytest.fixture(scope="session")
def built_page() -> Path:
    """The folder of the page, built from the sources as they are now."""
    with one_at_a_time():
        if not hatch_build.is_built(SOURCE, STATIC):
            try:
                hatch_build.build(SOURCE, STATIC)
            except (OSError, subprocess.SubprocessError) as error:
                absent(f"the dashboard cannot be built: {error}")
    return STATIC


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The dashboard's packages for development, as its lock file pins them: axe-core, TypeScript."""
    folder = SOURCE / "node_modules"
    with one_at_a_time():
        if AXE.is_file():
            return folder
        environment = dict(os.environ)
        try:
            npm = hatch_build.find_npm(environment)
            command = [*npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"]
            subprocess.run(command, cwd=SOURCE, env=environment, check=True, timeout=300, capture_output=True)
        except (OSError, subprocess.SubprocessError) as error:
            absent(f"the dashboard's packages cannot be installed: {error}")
    return folder


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's chromium, started once: its shell without a window, where there is one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        absent("chromium is not installed: run tools/install-system-packages")
    with sync_api.sync_playwright() as playwright:
        browser: Any = playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def browsing(chromium: Any, built_page: Path, node_modules: Path) -> Browsing:
    """The browser beside the page that it opens."""
    return Browsing(chromium)


@pytest.fixture(scope="session")
def busy_machine() -> Machine:
    """Eight GPUs, five at work."""
    return read_machine(BUSY)


@pytest.fixture(scope="session")
def sick_machine() -> Machine:
    """One GPU lost, one too hot."""
    return read_machine("h100x8+busy:0+busy:1+hot:6+lost:5")


@pytest.fixture(scope="session")
def hung_machine() -> Machine:
    """A driver call on GPU 6 does not come back."""
    return read_machine("h100x8+busy:0+hang:6")


@pytest.fixture(scope="session")
def empty_machine() -> Machine:
    """No GPU and no trace of one."""
    return read_machine("none")
