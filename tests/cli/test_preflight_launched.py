"""A preflight started by a launcher on two machines: one report, and every process exits alike."""

import contextlib
import json
import os
import subprocess
import sys

from gpudiag.errors import ExitStatus
from tests.cli.simulated import simulated_machine

# Of each process: its machine, rank and place there.
PROCESSES = (("h100x8", 0, 0, 2), ("h100x8", 1, 1, 2), ("h100x8+lost:5", 2, 0, 1))
_LIMIT_SECONDS = 60


def test_rank_0_tells_of_all_machines_and_all_exit_alike(tmp_path):
    # Nothing listens at that port: it tells this launch from others on the machine.
    launched = {
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(10000 + os.getpid() % 50000),
    }
    started = []
    with contextlib.ExitStack() as stack:
        for machine, rank, local_rank, local_world_size in PROCESSES:
            session = stack.enter_context(simulated_machine(machine))
            own = {
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(local_world_size),
                "XDG_RUNTIME_DIR": str(tmp_path),
                "GPUDIAG_STATE_DIR": str(tmp_path / f"state{rank}"),
            }
            process = subprocess.Popen(
                [sys.executable, "-m", "gpudiag", "preflight", "--level", "instant", "--json"],
                env={**session.environment, **launched, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            started.append(stack.enter_context(process))
        outputs = [process.communicate(timeout=_LIMIT_SECONDS) for process in started]
    assert {process.returncode for process in started} == {ExitStatus.FAIL}, outputs
    merged = json.loads(outputs[0][0])
    assert [machine["verdict"] for machine in merged["machines"]] == ["pass", "fail"]
    assert merged["groups"][0]["code"] == "gpu.lost"
    assert [output for output, _ in outputs[1:]] == [b"", b""]
