"""What every test stands on."""

import gc
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings

from gpudiag.simulate import session
from gpudiag.simulate.nvml.state import render_state
from gpudiag.simulate.scenario import Scenario

# No example asserts a time: on a busy machine any of them may be slow.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30
_MOST_RENDERED = 100  # of half a megabyte each


def _keep_bytecode() -> None:
    """Let Python keep what it compiles, whatever the shell says.

    Tests start gpudiag thousands of times, and a start without compiled modules takes twice as long.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _use_memory_for_temporary_files() -> None:
    """Keep temporary files in memory, unless TMPDIR says where, or there is little room, or programs cannot
    run there.

    A simulated machine is some 500 small files, which a disk takes ten times as long to write and remove.
    """
    if "TMPDIR" in os.environ or not os.access(_IN_MEMORY, os.W_OK):
        return
    found = os.statvfs(_IN_MEMORY)
    if found.f_bavail * found.f_frsize >= _ROOM_BYTES and not found.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = os.fspath(_IN_MEMORY)
        tempfile.tempdir = None  # pytest has already asked for it


def _render_each_machine_once() -> None:
    """Keep what the simulated library's state of a machine is rendered to: tests open the same ones often.

    Rendering takes 27 ms of the 68 that a machine takes, and depends on its GPUs, its NVML and its sysfs.
    """
    rendered: dict[bytes, bytes] = {}

    def render_once(scenario: Scenario, xid_events: Iterable[tuple[str, int]] = ()) -> bytes:
        events = tuple(xid_events)
        sysfs = [file for file in scenario.host.files.items() if file[0].startswith("sys/")]
        key = pickle.dumps((scenario.gpus, scenario.nvml, sysfs, events))
        if key not in rendered:
            if len(rendered) >= _MOST_RENDERED:
                rendered.clear()
            rendered[key] = render_state(scenario, events)
        return rendered[key]

    session.render_state = render_once


_keep_bytecode()
_render_each_machine_once()
_use_memory_for_temporary_files()


def pytest_configure() -> None:
    """Let the programs that tests start be interrupted, also where the tests run in the background.

    A shell starts background jobs with SIGINT ignored, and nohup whatever with SIGHUP, which every program
    below would inherit.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # which a program that is started does not inherit


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under `-m ranks`, leave out files in which nothing has that mark: to import them all takes longer than
    a test.
    """
    if config.option.markexpr != "ranks" or not collection_path.match("test_*.py"):
        return None
    return "pytest.mark.ranks" not in collection_path.read_text() or None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag by which `make test` takes a part of the tests of which there are many of a kind."""
    parser.addoption("--slice", metavar="NUMBER/COUNT", help="of the tests marked `sliced`, one in COUNT")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under `--slice NUMBER/COUNT`, leave out all other tests marked `sliced`, but for those marked
    `each_run`.

    Those that failed, and run once more by `--last-failed`, have been chosen already.
    """
    if not config.option.slice or config.option.lf:
        return
    number, count = map(int, config.option.slice.split("/"))
    sliced = [
        item
        for item in items
        if item.get_closest_marker("sliced") and not item.get_closest_marker("each_run")
    ]
    left_out = {id(item) for place, item in enumerate(sliced) if place % count != number % count}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what there is now: modules and tests, which stay to the end.

    A worker that has collected all tests would look through them and their modules again and again, and each
    process forked from it would copy them to do so: the 27 tests of tests/unit/runs/test_store.py took 10.7 s
    of a processor there and take 2.0, and tests that only compute take a sixth less.
    """
    gc.collect()
    gc.freeze()
