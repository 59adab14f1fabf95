"""Escape sequences planted wherever bytes come from outside: no command lets one of them through to a
terminal.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session
from tests.cli.simulated import run_on

# Sets the title, clears the screen, moves up a line, colours, clears by one character of C1, turns the
# direction.
EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[1A\x1b[35m\x9b2J\u202eevil\r"
OURS = re.compile(r"\x1b\[(?:3[123]|[012])m")  # the colours of gpudiag's own
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    words = json.dumps(f"python\0train{EVIL}.py\0--name={EVIL}\0")
    kernel = json.dumps(f"NVRM: Xid (PCI:{{gpu}}): 79, pid=1, name={EVIL}, GPU has fallen off the bus.")
    file = tmp_path_factory.mktemp("machine") / "planted.toml"
    file.write_text(
        f'base = "h100x8"\nfaults = ["busy:0"]\n'
        f"[host]\nhostname = {json.dumps('node' + EVIL)}\n"
        f'extra_files = {{ "proc/41200/cmdline" = {words} }}\n'
        f"[[kernel_log]]\nage_seconds = 60\ntext = {kernel}\ngpu = 2\n"
        f"[gpus.1]\nname = {json.dumps('NVIDIA H100' + EVIL)}\n"
    )
    with open_session(load_scenario(str(file))) as session:
        yield session


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log whose name and lines steer."""
    path = tmp_path_factory.mktemp("logs") / "train\x1b[2J.log"
    lines = (
        f"{EVIL}[rank3]: Traceback (most recent call last):",
        f'  File "/home/ann/train{EVIL}.py", line 3, in <module>',
        f"ValueError: {EVIL} no such thing",
        f"[rank0]: torch.OutOfMemoryError: CUDA out of memory. {EVIL} Tried to allocate 2.00 GiB.",
        f"NVRM: Xid (PCI:0000:18:00): 79, pid=77, name=a{EVIL}b, GPU has fallen off the bus.",
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def steering(text: str) -> list[str]:
    return [found[0] for found in STEERS.finditer(OURS.sub("", text))]


@pytest.mark.sliced
@pytest.mark.parametrize("colour", [{}, {"FORCE_COLOR": "1"}], ids=["plain", "coloured"])
@pytest.mark.parametrize(
    "words",
    [
        *((), ("list",), ("list", "--wide"), ("list", "--json"), ("list", "--sources", "all")),
        *(("list", "--free", "1"), ("preflight", "--level", "instant")),
        *(("preflight", "--level", "instant", "--json"), ("list", f"--{EVIL}"), (f"li{EVIL}st",)),
        *(("history", "--store", f"/nothing/{EVIL}"), ("preflight", "--only", EVIL)),
        *(("serve", "--bind", EVIL), ("merge", f"/nothing/{EVIL}.json")),
        *(("list", "--output", f"/nothing/{EVIL}.json"), ("explain", f"RuntimeError: CUDA error: {EVIL}")),
        *(("serve", "--token-file", f"/nothing/{EVIL}"), ("simulate", EVIL, "--", "true")),
    ],
    ids=lambda words: (
        " ".join(words).encode("ascii", "replace").decode().translate({27: "?", 13: "?", 7: "?"})[:40]
    ),
)
def test_no_command_steers_the_terminal(planted, tmp_path, words, colour):
    done = run_on(planted, *words, GPUDIAG_STATE_DIR=str(tmp_path), **colour)
    assert done.out or done.err
    assert steering(done.out + done.err) == []
    if "--json" in words:
        json.loads(done.out)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_log_that_is_explained_does_not_steer_it(log: Path, form):
    done = subprocess.run(
        [sys.executable, "-m", "gpudiag", "explain", str(log), *form],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "79" in done.stdout
    assert steering(done.stdout + done.stderr) == []


def test_the_machine_is_told_by_its_planted_words(planted):
    """That the plants are there: without this, the walk would prove nothing."""
    done = run_on(planted, "list", "--json")
    document = done.document
    assert document["host"].startswith("node\\x1b]0;owned")
    assert document["devices"][1]["name"].startswith("NVIDIA H100\\x1b]0;owned")
    process = document["devices"][0]["processes"][0]
    assert "\\x1b]0;owned" in process["command"]
