"""Of what a rank wrote last, the words that tell the cause are left."""

import subprocess
import sys

import pytest

from gpudiag.ranks.agents.local import read_last_words, shorten
from gpudiag.ranks.diagnosis.dump import DumpFiles

CUDA = "RuntimeError: CUDA error: an illegal memory access was encountered"
FRAMES = "\n".join(
    f"frame #{place}: c10::Error::Error(std::string) + 0x{place:x} (libc10.so)" for place in range(200)
)
DUMP = "\n".join(f"[PG 0] last enqueued work: {place}, last completed work: {place}" for place in range(200))


@pytest.mark.parametrize("after", [FRAMES, DUMP], ids=["frames", "dump"])
@pytest.mark.parametrize("before", ["", "loading\n" * 300], ids=["first", "in the middle"])
def test_the_words_of_an_error_are_left_whatever_follows_them(before, after):
    found = shorten(f"{before}{CUDA}\n{after}\nexit".encode())
    assert CUDA in found
    assert found.endswith("exit")
    assert len(found) < 3000


def test_a_line_that_comes_again_and_again_is_said_once():
    found = shorten(("NCCL WARN Call to ibv_poll_cq failed\n" * 500 + FRAMES).encode())
    assert found.count("[...]") == 2
    between = found.split("[...]")[1]
    assert between.count("NCCL WARN") == 1


def test_what_is_short_is_whole_and_what_is_not_there_is_empty(tmp_path):
    assert shorten(b"  all of it\n") == "all of it"
    assert read_last_words(tmp_path / "nothing") == ""


def test_a_huge_file_is_read_at_its_start_and_its_end(tmp_path):
    file = tmp_path / "rank0.stderr"
    file.write_text(f"{CUDA}\n" + "x" * 79 + "\n" + ("y" * 79 + "\n") * 60_000 + "the end\n")
    found = read_last_words(file)
    assert CUDA in found
    assert found.endswith("the end")


CRASH = """
import ctypes, sys
from pathlib import Path
from gpudiag.ranks.diagnosis.dump import DumpFiles
def in_a_kernel():
    ctypes.string_at(0)
DumpFiles(Path(sys.argv[1]), 3).answer_requests()
print("RuntimeError: the words before", file=sys.stderr, flush=True)
in_a_kernel()
"""


def test_the_stack_of_a_crash_goes_into_a_file_of_its_own(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode < 0
    assert done.stderr.strip() == "RuntimeError: the words before"
    stack = DumpFiles(tmp_path, 3).stack_of_crash()
    assert any("in_a_kernel" in frame for frame in stack)
