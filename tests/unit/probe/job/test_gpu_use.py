"""Which rank uses which GPU, and what NVML showed of it: by simulated machines, and by the values of a real
one.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks.job.gpu_use import describe_use, gpu_works
from gpudiag.model.job import KnownBy, RankSeen
from gpudiag.model.reading import Missing
from gpudiag.probe.job.gpu_use import with_gpu_looks
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session
from tests.recorded_hangs import facts_of


def rank(pid: int, *gpus: str) -> RankSeen:
    return RankSeen(pid, 0, 0, KnownBy.ENVIRONMENT, "python train.py", 60.0, gpus=gpus)


def sheet(uuid: str, *pids: int, **values: Any) -> dict[str, Any]:
    return {"uuid": uuid, "processes": [{"pid": pid} for pid in pids], "missing": {}, **values}


def test_the_gpu_that_lists_the_process_is_the_ranks() -> None:
    gpus = [{0: (0.0, sheet("GPU-a", 11)), 1: (1.0, sheet("GPU-a", 11))}, {0: (0.0, sheet("GPU-b", 12))}]
    seen = with_gpu_looks(rank(12, "/dev/nvidia0", "/dev/nvidia1"), gpus, frozenset((12,)))
    assert [one.gpu for one in seen.gpu_looks] == ["GPU-b"]


def test_in_a_container_the_only_open_device_tells() -> None:
    """NVML names processes by the host's numbers there."""
    gpus = [{0: (0.0, sheet("GPU-a", 4711, minor=0))}, {0: (0.0, sheet("GPU-b", 4712, minor=1))}]
    assert [
        one.gpu for one in with_gpu_looks(rank(12, "/dev/nvidia1"), gpus, frozenset((12,))).gpu_looks
    ] == ["GPU-b"]
    assert with_gpu_looks(rank(12, "/dev/nvidia0", "/dev/nvidia1"), gpus, frozenset((12,))).gpu_looks == ()


def test_a_rank_on_two_gpus_has_no_one_gpu() -> None:
    gpus = [{0: (0.0, sheet("GPU-a", 12))}, {0: (0.0, sheet("GPU-b", 12))}]
    assert with_gpu_looks(rank(12), gpus, frozenset((12,))).gpu_looks == ()


def test_what_was_not_read_stays_missing() -> None:
    (look,) = with_gpu_looks(
        rank(12), [{0: (0.0, sheet("GPU-a", 12, power_draw_watts=124.0))}], frozenset((12,))
    ).gpu_looks
    assert isinstance(look.utilization_percent, Missing)
    assert isinstance(look.pcie_bytes_per_second, Missing)
    assert look.power_draw_watts == 124.0


@pytest.mark.parametrize("name", ["spin", "skip", "size", "uneven", "loader"])
def test_a_real_gpu_that_only_waits_is_not_said_to_work(name: str) -> None:
    """100 % utilization at 122 to 125 W of 700: kernels of NCCL that wait.

    One process is assumed, for four jobs shared it.
    """
    told = facts_of(name)["nvml"][0]
    values = {
        "utilization_percent": told["util"],
        "power_draw_watts": told["power"] / 1000,
        "power_limit_enforced_watts": 700.0,
    }
    seen = with_gpu_looks(rank(12), [{0: (0.0, sheet("GPU-a", 12, **values))}], frozenset((12,)))
    assert gpu_works(seen) is False
    assert "100 % utilization" in describe_use(seen)
    busy = replace(seen, gpu_looks=(replace(seen.gpu_looks[0], power_draw_watts=480.0),))
    assert gpu_works(busy) is True
    shared = replace(seen, gpu_looks=(replace(busy.gpu_looks[0], processes=8),))
    assert gpu_works(shared) is None


_ASK = """
import json
from gpudiag.probe.guard import run_guarded
child = run_guarded("gpudiag.probe.job.gpu_use:stream_gpu_use", 60.0, 2, 0.6)
print(json.dumps([child.ending, child.detail, child.messages]))
"""


def test_a_simulated_machine_is_asked_twice_by_the_guarded_child() -> None:
    with open_session(load_scenario("h100x8"), os.environ) as session:
        done = subprocess.run(
            [sys.executable, "-c", _ASK], env=session.environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    ending, detail, messages = json.loads(done.stdout)
    assert ending == "finished", detail
    told = [message for message in messages if message[0] == "gpu"]
    assert {(moment, index) for _, moment, index, *_ in told} == {(m, n) for m in (0, 1) for n in range(8)}
    last = next(message[4] for message in told if message[1] == 1 and message[2] == 3)
    gpus = [{m: (at, one) for _, m, n, at, one in told if n == index} for index in range(8)]
    seen = with_gpu_looks(rank(12, "/dev/nvidia3"), gpus, frozenset((12,)))
    assert [one.gpu for one in seen.gpu_looks] == [last["uuid"]] * 2
    assert seen.gpu_looks[-1].power_limit_watts == last["power_limit_enforced_watts"]
    assert not isinstance(seen.gpu_looks[-1].sm_activity_percent, Missing)
