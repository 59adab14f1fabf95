"""`gpudiag demo`: its story as gpudiag itself finds it, the page, the view, and nothing that outlives it."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpudiag.simulate.loader import load_story
from tests.cli.simulated import (
    TIME_LIMIT_SECONDS,
    processes_of,
    run_gpudiag,
    run_in,
    run_on,
    simulated_machine,
)

# Codes that the chapters of the story bring, in their order; without any, the machine is well.
TOLD = [
    set(),
    {"temperature.gpu_too_hot"},
    {"gpu.lost"},
    {"gpu.lost"},
    set(),
]
HANGS = [False, False, False, True, False]


def test_each_chapter_is_found_by_the_product_and_nothing_else_is(tmp_path: Path) -> None:
    story = load_story("demo")
    assert story is not None
    at = 0.0
    with simulated_machine(story.moment(0).scenario) as session:
        for chapter, codes, hangs in zip(story.chapters, TOLD, HANGS, strict=True):
            session.update(story.moment(at + chapter.gradual_seconds).scenario)
            at += chapter.seconds
            judged = run_on(
                session, "preflight", "--level", "instant", "--json", "--store", str(tmp_path / "history")
            )
            failed = {
                finding["code"]
                for result in judged.document["results"]
                for finding in result["findings"]
                if finding["outcome"] == "fail"
            }
            assert codes <= failed, chapter.title
            assert bool(codes) == bool(failed), (chapter.title, failed)
            looked = run_on(session, "hang", "--json")
            if not hangs:
                assert (looked.status, looked.out) == (2, "")
                assert "no job stands still on this simulated machine" in looked.err
                continue
            assert looked.status == 1
            found = looked.document["jobs"][0]["findings"][0]
            assert (found["code"], found["subject"]["rank"]) == ("hang.loader", 2)
            assert "SIMULATED demo" in looked.document["notes"][0]
            # The ranks are the processes that the GPUs have.
            on_gpus = {
                process["pid"]
                for device in run_on(session, "list", "--json").document["devices"]
                for process in device["processes"] or ()
            }
            assert {rank["pid"] for rank in looked.document["jobs"][0]["job"]["ranks"]} <= on_gpus


@contextmanager
def demo(environment: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """The command as it runs on a terminal, the address that it prints, and the terminal's other end, to type
    there.
    """
    keyboard, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "gpudiag", "demo"],
        env=environment,
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(terminal)
        try:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if line.startswith("gpudiag serve: http://127.0.0.1:"):
                    assert "SIMULATED demo" in lines[0]
                    yield process, line.split()[-1], keyboard
                    return
            raise AssertionError(lines)
        finally:
            os.close(keyboard)
            if process.poll() is None:
                process.kill()


def own_environment(tmp_path: Path) -> dict[str, str]:
    """Folders of the test's own, so that it is seen what the command leaves in them."""
    folders = {"TMPDIR": tmp_path / "tmp", "HOME": tmp_path / "home", "XDG_STATE_HOME": tmp_path / "state"}
    for folder in folders.values():
        folder.mkdir()
    names = {name: str(folder) for name, folder in folders.items()}
    names["XDG_CACHE_HOME"] = str(Path.home() / ".cache")  # the compiled library
    return {**os.environ, **names, "GPUDIAG_STATE_DIR": str(tmp_path / "state" / "gpudiag")}


@pytest.mark.sliced
@pytest.mark.parametrize("end", ["ctrl-c", "SIGINT", "SIGTERM", "SIGKILL"])
def test_the_page_of_the_story_and_nothing_that_outlives_it(end: str, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
    with simulated_machine("none"):  # there is a compiler
        pass
    with demo(own_environment(tmp_path)) as (process, address, keyboard):
        with urllib.request.urlopen(f"{address}api/v1/session", timeout=TIME_LIMIT_SECONDS) as answer:
            assert json.load(answer)["actions_allowed"] is False
        with urllib.request.urlopen(f"{address}api/v1/stream", timeout=TIME_LIMIT_SECONDS) as stream:
            sent = (json.loads(line[6:]) for line in stream if line.startswith(b"data: "))
            live = next(one for one in sent if one.get("devices"))
        assert live["simulated"] == "demo"
        assert len(live["devices"]) == 8
        if end == "ctrl-c":
            os.write(keyboard, b"\x03")
        else:
            process.send_signal(getattr(signal, end))
        assert process.wait(TIME_LIMIT_SECONDS) == (-signal.SIGKILL if end == "SIGKILL" else 0)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()  # until everything that had it open has ended
    # After a SIGKILL the kernel ends the programs, and the machine's guardian removes the folder.
    until = time.monotonic() + TIME_LIMIT_SECONDS
    while end == "SIGKILL" and left_behind(process.pid, tmp_path) and time.monotonic() < until:
        time.sleep(0.02)
    assert left_behind(process.pid, tmp_path) == []


def left_behind(session: int, tmp_path: Path) -> list[object]:
    """Processes of the command, its machine's folder, and what gpudiag remembers."""
    machines = (tmp_path / "tmp").glob("gpudiag-simulate-*/*")
    return [*processes_of(session), *machines, *(tmp_path / "state").iterdir()]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("demo", "h100x8+busy:0"), "nothing happens on h100x8+busy:0"),
        (("demo", "dmeo"), "there is no simulated machine 'dmeo'"),
        (("demo", "--watch", "--port", "0"), "--port is for the page"),
        (("demo", "--watch"), "the view needs a terminal"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_sentence(argv: tuple[str, ...], words: str) -> None:
    done = run_in(dict(os.environ), *argv)
    assert done.status == 2
    assert words in done.err
    assert done.left == ()


def test_without_the_extra_it_names_the_extra_and_what_does_without() -> None:
    hidden = "import sys; sys.modules['fastapi'] = None; from gpudiag.cli.main import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "gpudiag simulate demo -- gpudiag list --watch 1" in done.stderr


def test_any_program_can_be_run_on_the_story() -> None:
    done = run_gpudiag("none", "simulate", "demo", "--", "gpudiag", "list", "--json")
    assert done.status == 0
    assert done.document["simulated"] == "demo"
