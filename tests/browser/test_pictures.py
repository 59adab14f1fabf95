"""The pictures of docs/images, taken of the real service on a simulated machine.

Every run takes them and looks whether they show something; GPUDIAG_WRITE_IMAGES=1 keeps those that
docs/images has already. A picture for the docs wants charts that are full: GPUDIAG_IMAGE_SECONDS=660 lets the
service run for so long first.
"""

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.motion import move_readings
from tests.browser.live_service import LiveService, live_service
from tests.browser.watched_page import DESKTOP, PHONE, Browsing, WatchedPage

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs/images"
JOBS = ROOT / "benchmarks/run_jobs"
WRITE = os.environ.get("GPUDIAG_WRITE_IMAGES") == "1"
WARM_UP_SECONDS = float(os.environ.get("GPUDIAG_IMAGE_SECONDS", "6"))
MACHINE = "h100x8+busy:0+busy:1+busy:2+busy:3+power-cap:2+idle-holder:5"
SICK = f"{MACHINE}+lost:6+throttle:1"
THROTTLED = f"{MACHINE}+throttle:3"
SMALLEST_BYTES = 15_000  # an empty page is smaller
RUN_WITHIN_MS = 120_000
LOOKS = {
    "light": (DESKTOP, "light"),
    "dark": (DESKTOP, "dark"),
    "phone": (PHONE, "light"),
    "phone-dark": (PHONE, "dark"),
}
VIEWS = {
    "overview": ("", "Throttling and events"),
    "history": ("history?last=600", "Drag over"),
    "topology": ("topology", "Slots"),
}


@pytest.fixture(scope="module")
def service(browsing: Browsing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with live_service(MACHINE, tmp_path_factory.mktemp("state")) as service:
        with browsing.page(service.address) as watched:
            watched.open()  # someone looks: a sample every second
            let_live(service, WARM_UP_SECONDS)
        yield service


def let_live(service: LiveService, seconds: float) -> None:
    """Move the machine's readings for so long; for a while in the middle, a GPU is slowed down."""
    started = time.monotonic()
    while (passed := time.monotonic() - started) < seconds:
        spec = THROTTLED if 0.55 < passed / seconds < 0.7 else MACHINE
        service.session.update(move_readings(load_scenario(spec), passed))
        time.sleep(1)


def take(watched: WatchedPage, name: str, folder: Path, size: tuple[int, int]) -> None:
    """Take the picture, and see that it is one."""
    kept = IMAGES / f"{name}.png"
    path = kept if WRITE and kept.exists() else folder / kept.name
    watched.page.mouse.move(0, 0)
    watched.page.wait_for_timeout(700)  # charts are drawn in the next frame
    watched.page.screenshot(path=path)
    picture = path.read_bytes()
    assert struct.unpack(">II", picture[16:24]) == size
    assert len(picture) > SMALLEST_BYTES


@pytest.mark.slow
@pytest.mark.sliced
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("look", LOOKS)
def test_pictures_of_the_views(browsing: Browsing, service: LiveService, look: str, tmp_path: Path) -> None:
    size, colours = LOOKS[look]
    for name, (view, text) in VIEWS.items():
        with browsing.page(service.address, size, colours) as watched:
            watched.open(view)
            watched.sees(text)
            take(watched, f"{name}-{look}", tmp_path, size)
            assert watched.complaints == []


@pytest.mark.slow
@pytest.mark.sliced
@pytest.mark.timeout(1200)
def test_a_picture_of_one_gpu(browsing: Browsing, service: LiveService, tmp_path: Path) -> None:
    with browsing.page(service.address, DESKTOP, "dark") as watched:
        watched.open("gpu/0")
        watched.sees("Compute capability")
        take(watched, "gpu-dark", tmp_path, DESKTOP)


@pytest.mark.slow
@pytest.mark.sliced
@pytest.mark.ranks
@pytest.mark.timeout(1200)
def test_a_picture_of_a_run(browsing: Browsing, service: LiveService, tmp_path: Path) -> None:
    with browsing.page(service.address, DESKTOP, "light") as watched:
        watched.page.goto(f"{service.address}#token={service.token}")
        watched.page.locator("table.gpus").wait_for()
        watched.open("runs")
        form = watched.page.locator("form.start")
        form.locator("label", has_text="nccl-test").first.click()
        form.get_by_label("backend").select_option("gloo")
        form.get_by_label("max bytes").fill("4194304")
        take(watched, "start-light", tmp_path, DESKTOP)
        form.get_by_role("button", name="Start nccl-test").click()
        watched.page.get_by_text("Bus bandwidth").wait_for(timeout=RUN_WITHIN_MS)
        take(watched, "run-light", tmp_path, DESKTOP)


@pytest.mark.slow
@pytest.mark.sliced
@pytest.mark.ranks
@pytest.mark.timeout(1200)
def test_a_picture_of_a_job_that_failed(browsing: Browsing, service: LiveService, tmp_path: Path) -> None:
    shutil.copy(JOBS / "train.py", tmp_path)
    job = ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    failing = {"KIND": "raises:1", "AT_STEP": "20", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "gpudiag", "run", "--verdict", "night.json", "--", *job],
        cwd=tmp_path,
        env={**service.environment, **failing, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        timeout=RUN_WITHIN_MS / 1000,
    )
    assert done.returncode == 1
    with browsing.page(service.address, DESKTOP, "light") as watched:
        watched.open("runs")
        watched.page.get_by_role("cell", name="run", exact=True).wait_for(timeout=RUN_WITHIN_MS)
        watched.page.get_by_role("row").nth(1).get_by_role("link").click()
        watched.sees("this batch has no labels")
        watched.sees("Where each rank was last")
        take(watched, "job-light", tmp_path, DESKTOP)


@pytest.mark.slow
@pytest.mark.sliced
@pytest.mark.timeout(1200)
def test_a_picture_of_a_sick_machine(browsing: Browsing, service: LiveService, tmp_path: Path) -> None:
    service.change_machine(SICK)
    for look, (size, colours) in LOOKS.items():
        with browsing.page(service.address, size, colours) as watched:
            watched.open()
            watched.page.locator("table.gpus td.gone").wait_for()
            take(watched, f"sick-{look}", tmp_path, size)
