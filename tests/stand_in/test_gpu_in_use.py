"""A GPU that others hold is not tested, and never at fault: every command, with more and less of its memory
free.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudiag.units import GIB, MIB
from tests.stand_in.running import Ended

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(300)]

TOTAL = 15636758528  # of a T4, without what its driver keeps
_MACHINE = """
base = "t4x1"
[gpu]
memory_used_bytes = {used}
memory_free_bytes = {free}
utilization_percent = {load}
[[gpu.processes]]
pid = {pid}
kind = "compute"
memory_used_bytes = {used}
"""
HOLDER = os.getpid()  # a process that lives: one that does not is another check's
_HOLDS = re.compile(rf"pid {HOLDER} \([^)]*\) holds")
OnGpus = Callable[..., Ended]


@pytest.fixture
def on_held(on_gpus: OnGpus, tmp_path: Path) -> Iterator[OnGpus]:
    def run(free: int, *command: str, load: int = 0) -> Ended:
        machine = tmp_path / "held.toml"
        machine.write_text(_MACHINE.format(pid=HOLDER, used=TOTAL - free, free=free, load=load))
        # Before a rank's context is there, it is a part of what is free.
        return on_gpus(
            str(machine), *command, variables={"CUDA_STAND_IN_FREE_BYTES": str(max(0, free - 600 * MIB))}
        )

    return run


@pytest.mark.parametrize("free", [0, 50 * MIB, 900 * MIB])
def test_ranks_are_refused_in_one_sentence_with_who_holds_the_memory(on_held: OnGpus, free: int):
    ended = on_held(free, "nccl-test", "--nproc", "1")
    assert ended.status == 3
    said = ended.error.splitlines()
    assert said[0].startswith("gpudiag: GPU 0: ")
    assert "of its memory are free, and a rank with NCCL needs" in said[0]
    assert _HOLDS.search(said[0])
    assert said[1] == "  wait for the process that holds the memory, or end it if it was left behind"
    assert "--max-bytes" not in ended.error


def test_a_training_is_refused_in_the_same_words(on_held: OnGpus):
    ended = on_held(900 * MIB, "train", "--nproc", "1", "--steps", "2")
    assert ended.status == 3
    assert "a rank with NCCL needs" in ended.error
    assert _HOLDS.search(ended.error)


@pytest.mark.parametrize(("free", "flags"), [(0, ("--force",)), (900 * MIB, ()), (900 * MIB, ("--force",))])
def test_a_preflight_tests_nothing_there_and_warns_of_who_holds_it(
    on_held: OnGpus, free: int, flags: tuple[str, ...]
):
    report = on_held(free, "preflight", "--level", "quick", *flags, "--json").document()
    codes = [finding["code"] for result in report["results"] for finding in result["findings"]]
    # What the kernel of the machine under the stand-in has logged is its own.
    assert (report["verdict"], [code for code in codes if not code.startswith("kernel.")]) == (
        "warn",
        ["memory.held"],
    )
    outcomes = {result["check"]: result for result in report["results"]}
    for check in ("active.ranks", "bandwidth.memory", "compute.matmul", "collective.all_reduce", "train.ddp"):
        assert outcomes[check]["outcome"] == "skip", outcomes[check]
        assert _HOLDS.search(outcomes[check]["reason"])


def test_with_half_of_it_free_data_is_tested_beside_a_busy_neighbour_and_speed_is_not(on_held: OnGpus):
    ended = on_held(TOTAL // 2, "preflight", "--level", "quick", "--force", load=98)
    assert ended.status == 0
    text = " ".join(ended.output.split())
    assert text.startswith("WARN ")
    assert "Not tested for speed, because others use it: GPU 0: 1 compute process" in text
    assert "FAIL" not in text
    assert "slow" not in text


def test_more_than_is_free_is_refused_with_what_fits_and_who_has_the_rest(on_held: OnGpus):
    ended = on_held(5 * GIB, "nccl-test", "--nproc", "1", "--max-bytes", "8G")
    assert ended.status == 2
    assert "more than 80% of the memory that is free there; GPU 0: " in ended.error
    assert _HOLDS.search(ended.error)
    assert "fits" in ended.error
